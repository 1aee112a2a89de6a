"""Executes each distinct call of an operator of PyTorch again on its own inputs, and compares results bit by bit.

The training's own call is made as it is; the repeats work on copies wherever the operator changes its inputs, and all
generators and the number of threads are put back.
"""

from __future__ import annotations

import os
import time

from ..core.signal_errors import pass_on
from ..pytorch import private_api
from .confirm import PRESENT, Confirmations, KeptCalls, verdict
from .torch_calls import Operator
from .torch_inputs import Copier, GeneratorStates, compared, decoded, digest_of, encoded, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Observer
    from .confirm import Digests
    from .torch_operators import CallRecord

MAX_BYTES = 1 << 30  # of the inputs of one call that are copied
MAX_SECONDS_OF_THREADS = 3.0
WAKING = 1 << 17  # numbers on which all threads work
AGAIN = frozenset([2, 4, 8])  # of calls that can race, those with other contents that are repeated too
COMPILED = "torch.compile"
THREADS = (1, 2, 4)
FEW = 4  # repeats with another number of threads
# Operators that let threads or atomic additions meet at one place of memory, or that libraries differ in.
_CAN_RACE = (
    "index scatter gather put embedding bag bincount hist cum segment pool upsample interpolate grid pad fold ctc nll "
    "sparse coalesce unique median kthvalue sort repeat".split()
)
_RACING = ("::index_put", "::_index_put_impl", "::put", "::index_copy")  # seen to race on the CPU
_NEVER_AGAIN = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem", "_dtensor", "rpc")  # others take part
_OF_MEMORY = ("aten::_pin_memory", "aten::set_")
_CAPPED = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


class TorchConfirmer:
    """Repeats the calls of this process."""

    def __init__(self, observer: Observer, torch: Any, quiet: Callable[[bool], None], make: Callable[..., Any]) -> None:
        self._observer = observer
        self._make = make
        self._quiet = quiet
        self._torch = torch
        self._confirmations = Confirmations(observer)
        self._kept = KeptCalls(observer, "torch")

    # The training's call

    def call(self, record: CallRecord, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the training's call, and repeat it if it is to be."""
        if not self.is_due(record):
            return self._make(function, args, kwargs)
        begun = time.monotonic()
        repeats = self._guarded(self._prepare, record, function, args, kwargs)
        result = self._make(function, args, kwargs)
        if repeats is not None:
            self._guarded(self._repeat, record, repeats)
        self._confirmations.spent += time.monotonic() - begun
        return result

    def _guarded(self, part: Callable[..., Any], record: CallRecord, *arguments: Any) -> Any:
        """Do a part of ours; what it raises is said of the call, and is not the training's."""
        line = self._confirmations.line(record.key, record.line)
        self._quiet(True)
        try:
            with self._torch.no_grad(), private_api.without_overrides(self._torch):
                return part(record, line, *arguments)
        except Exception as error:
            words = " ".join(str(error).split())
            line["problem"] = f"executed again, it raised {type(error).__name__}: {words}"[:300]
            pass_on(error)
            return None
        finally:
            self._quiet(False)

    def is_due(self, record: CallRecord) -> bool:
        """Return whether this call is to be executed again."""
        if not self._observer.collecting:
            return False
        line = self._confirmations.of(record.key)
        if line is None:
            return True
        calls = record.line["calls"]
        return calls in AGAIN and not line["problem"] and line["results"] == 1 and could_race(record.operator)

    def _prepare(
        self, record: CallRecord, line: dict[str, Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Repeats | None:
        """Return what is needed to make the call again; None where it must not be."""
        line["problem"] = problem = self._why_not(record.operator, args, kwargs)
        if problem:
            return None
        if _changes(record.operator):
            args, kwargs = Copier(self._torch).copy((args, kwargs))

        def make(*args: Any, **kwargs: Any) -> Any:
            return self._make(function, args, kwargs)

        return Repeats(self._torch, record.operator, make, args, kwargs)

    def _why_not(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        torch = self._torch
        namespace = operator.name.partition("::")[0]
        if operator.is_uninitialized:
            return "its result is memory as it was found"
        if namespace in _NEVER_AGAIN or operator.name in _OF_MEMORY:
            return "it is not one to be executed again"
        if size((args, kwargs)) > MAX_BYTES:
            return f"its inputs are larger than {MAX_BYTES >> 20} MiB"
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return "it was called while a CUDA graph was captured"
        return self._confirmations.no_time_left(could_race(operator))

    # The repeats

    def _repeat(self, record: CallRecord, line: dict[str, Any], repeats: Repeats) -> None:
        operator = record.operator
        can_race = could_race(operator)
        does_race = any(part in operator.name for part in _RACING) or not operator.built_in
        if can_race and line["device"] == "cpu":
            repeats.before = self._waker()
        try:
            found = self._confirmations.repeat(line, repeats.once, can_race, does_race)
            if line["device"] == "cpu" and operator.name != COMPILED:  # whose code has the number of threads in it
                self._try_threads(line, repeats, found, can_race)
                if len(found) == 1 and operator.built_in:
                    function, _, _, signature = record.key
                    key = (function, signature, repr(record.line["attributes"]))
                    self._kept.keep(key, size(repeats.inputs), repeats.save, found, line)
        finally:
            repeats.end()

    def _waker(self) -> Callable[[], object]:
        """What has all threads busy: those that sleep come too late to meet the first, on a busy machine above all."""
        torch = self._torch
        numbers = torch.ones(WAKING)
        result = torch.empty_like(numbers)
        return lambda: torch.neg(numbers, out=result)

    def _try_threads(self, line: dict[str, Any], repeats: Repeats, found: Digests, can_race: bool) -> None:
        torch = self._torch
        present, set_count = torch.get_num_threads(), private_api.set_thread_count(torch)
        times = max(FEW, self._observer.confirm // 3) if can_race else FEW
        begun = time.monotonic()
        try:
            for number in THREADS:
                if number != present and time.monotonic() - begun < MAX_SECONDS_OF_THREADS:
                    set_count(number)  # not the function that settings are read by
                    others = dict.fromkeys(repeats.once() for _ in range(times))
                    line["threads"][str(number)] = verdict(found, others, line["threads"].get(str(number)))
        finally:
            set_count(present)

    def finish(self) -> None:
        """Try other capabilities of the CPU, in processes of their own."""
        torch = self._torch
        present = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", str)()
        capped = [
            (variables, [(f"capabilities {label}", 0)])
            for label, variables in _CAPPED.items()
            if label.upper() != present and not any(name in os.environ for name in variables)
        ]
        self._kept.execute_elsewhere(
            [({}, [(PRESENT, 0)]), *capped] if capped else [],
            repeats=2,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            precision=torch.get_float32_matmul_precision(),
            onednn=torch.backends.mkldnn.enabled,
        )


class Repeats:
    """One call that can be made again and again."""

    def __init__(self, torch: Any, operator: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._torch = torch
        self._operator = operator
        self._function = function
        self.inputs = args, kwargs
        self._before = self._states()
        self._after: GeneratorStates | None = None
        self.before: Callable[[], object] = _nothing

    def _states(self) -> GeneratorStates:
        return GeneratorStates(self._torch, self.inputs, foreign=not self._operator.built_in)

    def once(self) -> str:
        """Make the call, and digest what it gives."""
        if self._after is None:
            self._after = self._states()
        self._before.restore()
        changes = _changes(self._operator)
        args, kwargs = Copier(self._torch).copy(self.inputs) if changes else self.inputs
        self.before()
        result = self._function(*args, **kwargs)
        values = compared(self._torch, self._operator, result, args)
        return digest_of(self._torch, [values, args, kwargs] if changes else values)

    def end(self) -> None:
        """Put the generators back to where the training's call left them."""
        if self._after is not None:
            self._after.restore()

    def save(self, file: Any) -> None:
        """Write down what another process needs to make the call."""
        args, kwargs = self.inputs
        content = {
            "name": self._operator.name,
            "overload": self._operator.overload or "default",
            "args": encoded(self._torch, list(args)),
            "kwargs": encoded(self._torch, kwargs),
            "state": self._before.processor,
            "threads": self._torch.get_num_threads(),
        }
        self._torch.save(content, file)


def _nothing() -> None:
    pass


def _changes(operator: Any) -> bool:
    return operator.changes or not operator.built_in


def could_race(operator: Any) -> bool:
    """Return whether threads may meet in it: such operators are known, or nothing is known of it."""
    return not operator.built_in or any(part in operator.name for part in _CAN_RACE)


# In another process


def prepare(torch: Any, order: dict[str, Any], _threads: int) -> None:
    """Compute as the training did."""
    torch.use_deterministic_algorithms(order["deterministic"], warn_only=True)
    torch.set_float32_matmul_precision(order["precision"])
    torch.backends.mkldnn.enabled = order["onednn"]
    torch.set_grad_enabled(False)


def load(torch: Any, file: Any) -> Callable[[], str]:
    """Return what makes a call that was kept, and digests what it gives."""
    call = torch.load(file, weights_only=True)
    namespace, _, name = call["name"].partition("::")
    function = getattr(getattr(getattr(torch.ops, namespace), name), call["overload"])
    torch.set_num_threads(call["threads"])
    torch.default_generator.set_state(call["state"])
    args, kwargs = decoded(torch, call["args"]), decoded(torch, call["kwargs"])
    return Repeats(torch, Operator(function), function, args, kwargs).once
