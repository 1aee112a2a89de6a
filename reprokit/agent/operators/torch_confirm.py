"""Executes each distinct call of an operator of PyTorch again on its own inputs, and compares results bit by bit.

The training's own call is made unchanged. Repeats work on copies if the operator changes its inputs; afterwards all
generators and the number of threads are restored.
"""

from __future__ import annotations

import os
import time

from ..core.signal_errors import pass_on
from ..pytorch import private_api
from .confirm import PRESENT, Confirmations, SavedCalls, verdict
from .torch_calls import Operator
from .torch_inputs import GeneratorStates, TensorCopier, comparable_results, decode, digest_of, encode, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Observer
    from .confirm import Digests
    from .torch_operators import CallRecord

MAX_BYTES = 1 << 30  # of the copied inputs of one call
MAX_SECONDS_OF_THREADS = 3.0
WAKING_SIZE = 1 << 17  # elements of a tensor large enough for all threads
FURTHER_CALLS = frozenset([2, 4, 8])  # of a call that can race, later occurrences that are repeated too
COMPILED = "torch.compile"
THREADS = (1, 2, 4)
FEW_REPEATS = 4  # repeats with another number of threads
# Parts of names of operators in which threads or atomic additions share memory, or libraries differ.
_CAN_RACE = (
    "index scatter gather put embedding bag bincount hist cum segment pool upsample interpolate grid pad fold ctc nll "
    "sparse coalesce unique median kthvalue sort repeat".split()
)
_RACING = ("::index_put", "::_index_put_impl", "::put", "::index_copy")  # seen to race on the CPU
_NOT_REPEATABLE = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem", "_dtensor", "rpc")  # collective operators
_OF_MEMORY = ("aten::_pin_memory", "aten::set_")
_CAPPED = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


class TorchConfirmer:
    """Repeats the operator calls of this process."""

    def __init__(self, observer: Observer, torch: Any, quiet: Callable[[bool], None], make: Callable[..., Any]) -> None:
        self._observer = observer
        self._make = make
        self._quiet = quiet
        self._torch = torch
        self._confirmations = Confirmations(observer)
        self._saved = SavedCalls(observer, "torch")

    # The training's call

    def call(self, record: CallRecord, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the training's call, and repeat it if it is due."""
        if not self.is_due(record):
            return self._make(function, args, kwargs)
        start = time.monotonic()
        repeatable = self._attempt(self._prepare, record, function, args, kwargs)
        result = self._make(function, args, kwargs)
        if repeatable is not None:
            self._attempt(self._repeat, record, repeatable)
        self._confirmations.seconds_spent += time.monotonic() - start
        return result

    def _attempt(self, part: Callable[..., Any], record: CallRecord, *arguments: Any) -> Any:
        """Execute a part of the confirmation; an exception is recorded as the call's problem and not raised."""
        line = self._confirmations.line(record.key, record.line)
        self._quiet(True)
        try:
            with self._torch.no_grad(), private_api.without_overrides(self._torch):
                return part(record, line, *arguments)
        except Exception as error:
            message = " ".join(str(error).split())
            line["problem"] = f"executed again, it raised {type(error).__name__}: {message}"[:300]
            pass_on(error)
            return None
        finally:
            self._quiet(False)

    def is_due(self, record: CallRecord) -> bool:
        """Return whether to repeat this call."""
        if not self._observer.collecting:
            return False
        line = self._confirmations.of(record.key)
        if line is None:
            return True
        calls = record.line["calls"]
        return calls in FURTHER_CALLS and not line["problem"] and line["results"] == 1 and could_race(record.operator)

    def _prepare(
        self, record: CallRecord, line: dict[str, Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TorchCall | None:
        """Return the repeatable call; None if it must not be repeated."""
        line["problem"] = problem = self._why_not(record.operator, args, kwargs)
        if problem:
            return None
        if _changes(record.operator):
            args, kwargs = TensorCopier(self._torch).copy((args, kwargs))

        def make(*args: Any, **kwargs: Any) -> Any:
            return self._make(function, args, kwargs)

        return TorchCall(self._torch, record.operator, make, args, kwargs)

    def _why_not(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        torch = self._torch
        namespace = operator.name.partition("::")[0]
        if operator.is_uninitialized:
            return "its result is memory as it was found"
        if namespace in _NOT_REPEATABLE or operator.name in _OF_MEMORY:
            return "it is not one to be executed again"
        if size((args, kwargs)) > MAX_BYTES:
            return f"its inputs are larger than {MAX_BYTES >> 20} MiB"
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return "it was called while a CUDA graph was captured"
        return self._confirmations.no_time_left(could_race(operator))

    # The repeats

    def _repeat(self, record: CallRecord, line: dict[str, Any], repeatable: TorchCall) -> None:
        operator = record.operator
        can_race = could_race(operator)
        does_race = any(part in operator.name for part in _RACING) or not operator.built_in
        if can_race and line["device"] == "cpu":
            repeatable.before_call = self._make_waker()
        try:
            digests = self._confirmations.repeat(line, repeatable.execute, can_race, does_race)
            if line["device"] == "cpu" and operator.name != COMPILED:  # which has its number of threads built in
                self._try_threads(line, repeatable, digests, can_race)
                if len(digests) == 1 and operator.built_in:
                    function, _, _, signature = record.key
                    key = (function, signature, repr(record.line["attributes"]))
                    self._saved.add(key, size(repeatable.inputs), repeatable.save, digests, line)
        finally:
            repeatable.end()

    def _make_waker(self) -> Callable[[], object]:
        """Return a function that wakes all threads: sleeping ones start too late to race with the first."""
        torch = self._torch
        numbers = torch.ones(WAKING_SIZE)
        result = torch.empty_like(numbers)
        return lambda: torch.neg(numbers, out=result)

    def _try_threads(self, line: dict[str, Any], repeatable: TorchCall, digests: Digests, can_race: bool) -> None:
        torch = self._torch
        present, set_count = torch.get_num_threads(), private_api.set_thread_count(torch)
        times = max(FEW_REPEATS, self._observer.confirm // 3) if can_race else FEW_REPEATS
        start = time.monotonic()
        try:
            for number in THREADS:
                if number != present and time.monotonic() - start < MAX_SECONDS_OF_THREADS:
                    set_count(number)  # not the public function, which is observed
                    other_digests = dict.fromkeys(repeatable.execute() for _ in range(times))
                    line["threads"][str(number)] = verdict(digests, other_digests, line["threads"].get(str(number)))
        finally:
            set_count(present)

    def finish(self) -> None:
        """Execute saved calls with other capabilities of the CPU, in separate processes."""
        torch = self._torch
        present = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", str)()
        limited = [
            (variables, [(f"capabilities {label}", 0)])
            for label, variables in _CAPPED.items()
            if label.upper() != present and not any(name in os.environ for name in variables)
        ]
        self._saved.execute_elsewhere(
            [({}, [(PRESENT, 0)]), *limited] if limited else [],
            repeats=2,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            precision=torch.get_float32_matmul_precision(),
            onednn=torch.backends.mkldnn.enabled,
        )


class TorchCall:
    """A call of an operator that can be repeated."""

    def __init__(self, torch: Any, operator: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._torch = torch
        self._operator = operator
        self._function = function
        self.inputs = args, kwargs
        self._states_before = self._states()
        self._states_after: GeneratorStates | None = None
        self.before_call: Callable[[], object] = _nothing

    def _states(self) -> GeneratorStates:
        return GeneratorStates(self._torch, self.inputs, foreign=not self._operator.built_in)

    def execute(self) -> str:
        """Execute the call; return the digest of its results."""
        if self._states_after is None:
            self._states_after = self._states()
        self._states_before.restore()
        changes = _changes(self._operator)
        args, kwargs = TensorCopier(self._torch).copy(self.inputs) if changes else self.inputs
        self.before_call()
        result = self._function(*args, **kwargs)
        values = comparable_results(self._torch, self._operator, result)
        return digest_of(self._torch, [values, args, kwargs] if changes else values)

    def end(self) -> None:
        """Restore the generators as the training's call left them."""
        if self._states_after is not None:
            self._states_after.restore()

    def save(self, file: Any) -> None:
        """Write what another process needs to execute the call."""
        args, kwargs = self.inputs
        content = {
            "name": self._operator.name,
            "overload": self._operator.overload or "default",
            "args": encode(self._torch, list(args)),
            "kwargs": encode(self._torch, kwargs),
            "state": self._states_before.processor,
            "threads": self._torch.get_num_threads(),
        }
        self._torch.save(content, file)


def _nothing() -> None:
    pass


def _changes(operator: Any) -> bool:
    return operator.changes or not operator.built_in


def could_race(operator: Any) -> bool:
    """Return whether threads may race in an operator: it is listed, or not PyTorch's own."""
    return not operator.built_in or any(part in operator.name for part in _CAN_RACE)


# In another process


def prepare(torch: Any, order: dict[str, Any], _threads: int) -> None:
    """Set up PyTorch as in the training."""
    torch.use_deterministic_algorithms(order["deterministic"], warn_only=True)
    torch.set_float32_matmul_precision(order["precision"])
    torch.backends.mkldnn.enabled = order["onednn"]
    torch.set_grad_enabled(False)


def load(torch: Any, file: Any) -> Callable[[], str]:
    """Return a function that executes a saved call and digests its results."""
    call = torch.load(file, weights_only=True)
    namespace, _, name = call["name"].partition("::")
    function = getattr(getattr(getattr(torch.ops, namespace), name), call["overload"])
    torch.set_num_threads(call["threads"])
    torch.default_generator.set_state(call["state"])
    args, kwargs = decode(torch, call["args"]), decode(torch, call["kwargs"])
    return TorchCall(torch, Operator(function), function, args, kwargs).execute
