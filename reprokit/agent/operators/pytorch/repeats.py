"""Repeats calls of PyTorch's operators: on copies with equal layout, with the states of generators put back.

The training's own call is made unchanged. Repeats work on copies if the operator changes its inputs; afterwards all
generators and the number of threads are restored.
"""

from __future__ import annotations

import hashlib
import os
import time

from ...capture.random_states import generator_entries
from ...core.state_entries import StateKind, generator_entry
from ...pytorch import private_api
from ...pytorch.compiled_graphs import COMPILED
from ...pytorch.dispatch_modes import passed_on
from ...pytorch.operators import PytorchOperator
from ...pytorch.tensors import entry, tensors_in
from ..confirm import PRESENT, NotRepeatable, verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...pytorch.dispatch_modes import DispatchModes
    from ...pytorch.operators import PytorchCalled
    from .. import Observer
    from ..confirm import Digests, Processes
    from ..files import CallRecord

MAX_BYTES = 1 << 30  # of the copied inputs of one call
MAX_SECONDS_OF_THREADS = 3.0
WAKING_SIZE = 1 << 17  # elements of a tensor large enough for all threads
EARLIER_CALLS = frozenset([1, 3, 7])  # of a call that can race, after which it is repeated too
THREADS = (1, 2, 4)
FEW_REPEATS = 4  # repeats with another number of threads
_ALLOWANCE = 4096  # bytes by which a storage may exceed its tensors and still be copied whole
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


class PytorchRepeats:
    """Repeats the operator calls of this process."""

    framework = "torch"

    def __init__(self, observer: Observer, torch: Any, modes: DispatchModes) -> None:
        self._observer = observer
        self._torch = torch
        self._modes = modes

    def undisturbed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the agent's, of whose calls no events and no gradients are made."""
        self._quiet(True)  # a generator as a context manager would be compiled by dynamo
        try:
            with self._torch.no_grad(), private_api.without_overrides(self._torch):
                return function(*arguments)
        finally:
            self._quiet(False)

    def _quiet(self, is_quiet: bool) -> None:
        mode = self._modes.mode
        if mode is not None:
            mode.is_quiet = is_quiet

    def can_race(self, operator: Any) -> bool:
        """Return whether threads may race in an operator: it is listed, or not PyTorch's own."""
        return not operator.built_in or any(part in operator.name for part in _CAN_RACE)

    def is_due(self, record: CallRecord, call: PytorchCalled, line: dict[str, Any] | None) -> bool:
        """Return whether to repeat a call: the first of its kind, and some more if threads may race in it."""
        if record.kind == "compiled" and call.operator.owns_memory:
            return False
        if line is None:
            return True
        is_unclear = not line["problem"] and line["results"] == 1
        return is_unclear and record.line["calls"] in EARLIER_CALLS and self.can_race(record.operator)

    def prepare(self, call: PytorchCalled) -> PytorchRepeat:
        """Return the repeatable call, with copies of inputs that it may change; raises NotRepeatable."""
        torch, operator, inputs = self._torch, call.operator, (call.inputs, call.keywords)
        if operator.is_uninitialized:
            raise NotRepeatable("its result is memory as it was found")
        if operator.name.partition("::")[0] in _NOT_REPEATABLE or operator.name in _OF_MEMORY:
            raise NotRepeatable("it is not one to be executed again")
        if size(inputs) > MAX_BYTES:
            raise NotRepeatable(f"its inputs are larger than {MAX_BYTES >> 20} MiB")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise NotRepeatable("it was called while a CUDA graph was captured")
        if _changes(operator):
            inputs = TensorCopier(torch).copy(inputs)

        def make(*args: Any, **kwargs: Any) -> Any:
            return passed_on(torch, call.function, args, kwargs)

        repeatable = PytorchRepeat(torch, operator, make, *inputs)
        repeatable.can_race = self.can_race(operator)
        repeatable.wakes_threads = repeatable.can_race and all(tensor.is_cpu for tensor in tensors_in(inputs))
        repeatable.does_race = any(part in operator.name for part in _RACING) or not operator.built_in
        return repeatable

    def vary(
        self, record: CallRecord, repeatable: PytorchRepeat, digests: Digests, line: dict[str, Any]
    ) -> object | None:
        """Repeat a call with other numbers of threads; return its key for other processes if it repeats."""
        operator = record.operator
        if line["device"] != "cpu" or operator.name == COMPILED:  # which has its number of threads built in
            return None
        self._try_threads(line, repeatable, digests)
        if len(digests) != 1 or not operator.built_in:
            return None
        function, _, _, signature = record.key
        return function, signature, repr(record.line["attributes"])

    def _try_threads(self, line: dict[str, Any], repeatable: PytorchRepeat, digests: Digests) -> None:
        torch = self._torch
        present, set_count = torch.get_num_threads(), private_api.set_thread_count(torch)
        times = max(FEW_REPEATS, self._observer.confirm // 3) if repeatable.can_race else FEW_REPEATS
        start = time.monotonic()
        try:
            for number in THREADS:
                if number != present and time.monotonic() - start < MAX_SECONDS_OF_THREADS:
                    set_count(number)  # not the public function, which is observed
                    other_digests = dict.fromkeys(repeatable.execute() for _ in range(times))
                    line["threads"][str(number)] = verdict(digests, other_digests, line["threads"].get(str(number)))
        finally:
            set_count(present)

    def processes(self) -> tuple[Processes, dict[str, Any]]:
        """Return processes with other capabilities of the CPU, and how PyTorch is set up in them."""
        torch = self._torch
        present = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", str)()
        limited: Processes = [
            (variables, [(f"capabilities {label}", 0)])
            for label, variables in _CAPPED.items()
            if label.upper() != present and not any(name in os.environ for name in variables)
        ]
        return [({}, [(PRESENT, 0)]), *limited] if limited else [], {
            "repeats": 2,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "precision": torch.get_float32_matmul_precision(),
            "onednn": torch.backends.mkldnn.enabled,
        }


class PytorchRepeat:
    """A call of an operator that can be repeated."""

    can_race = does_race = wakes_threads = False

    def __init__(self, torch: Any, operator: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._torch = torch
        self._operator = operator
        self._function = function
        self._inputs = args, kwargs
        self._states_before = self._states()
        self._states_after: GeneratorStates | None = None
        self._wake: Callable[[], object] | None = None

    def _states(self) -> GeneratorStates:
        return GeneratorStates(self._torch, self._inputs, foreign=not self._operator.built_in)

    @property
    def size(self) -> int:
        """The size of its inputs in bytes."""
        return size(self._inputs)

    def execute(self) -> str:
        """Execute the call; return the digest of its results."""
        if self._states_after is None:
            self._states_after = self._states()
            self._wake = self._make_waker() if self.wakes_threads else None
        self._states_before.restore()
        changes = _changes(self._operator)
        args, kwargs = TensorCopier(self._torch).copy(self._inputs) if changes else self._inputs
        if self._wake is not None:
            self._wake()
        values = self._operator.comparable_results(self._function(*args, **kwargs))
        return digest_of(self._torch, [values, args, kwargs] if changes else values)

    def _make_waker(self) -> Callable[[], object]:
        """Return a function that wakes all threads: sleeping ones start too late to race with the first."""
        torch = self._torch
        numbers = torch.ones(WAKING_SIZE)
        result = torch.empty_like(numbers)
        return lambda: torch.neg(numbers, out=result)

    def end(self) -> None:
        """Restore the generators as the training's call left them."""
        if self._states_after is not None:
            self._states_after.restore()

    def save(self, file: Any) -> None:
        """Write what another process needs to execute the call."""
        args, kwargs = self._inputs
        content = {
            "name": self._operator.name,
            "overload": self._operator.overload or "default",
            "args": encode(self._torch, list(args)),
            "kwargs": encode(self._torch, kwargs),
            "state": self._states_before.processor,
            "threads": self._torch.get_num_threads(),
        }
        self._torch.save(content, file)


def _changes(operator: Any) -> bool:
    return operator.changes or not operator.built_in


# Inputs


def size(value: Any) -> int:
    """Return the bytes of all tensors in a value."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))


def map_tensors(torch: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of nested containers with function(tensor) for each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)([map_tensors(torch, item, function) for item in value])
    if type(value) is dict:
        return {key: map_tensors(torch, item, function) for key, item in value.items()}
    return value


class TensorCopier:
    """Copies tensors with strides, offsets and shared storages."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._storages: dict[tuple[Any, int], Any] = {}

    def copy(self, value: Any) -> Any:
        """Return a copy of nested arguments."""
        return map_tensors(self._torch, value, self._copy)

    def _copy(self, tensor: Any) -> Any:
        tensor = tensor.detach()
        if not self._is_simple(tensor):
            return tensor.clone()
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr())
        copied = self._storages.get(key)
        if copied is None:
            copied = self._storages[key] = storage.clone()
        new = self._torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        new.set_(copied, tensor.storage_offset(), tensor.size(), tensor.stride())
        return new

    def _is_simple(self, tensor: Any) -> bool:
        if (
            tensor.is_nested
            or tensor.layout != self._torch.strided
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return False
        used = tensor.numel() * tensor.element_size()
        return bool(0 < tensor.untyped_storage().nbytes() <= 2 * used + _ALLOWANCE)


def digest_of(torch: Any, values: Any) -> str:
    """Return one digest of the bits of all tensors in values."""
    digest = hashlib.sha256()
    for tensor in tensors_in(values):
        for part in tensor.detach().unbind() if tensor.is_nested else [tensor.detach()]:
            digest.update(entry("", part.coalesce() if part.layout == torch.sparse_coo else part)[3].encode())
    return digest.hexdigest()


class GeneratorStates:
    """The saved states of the generators."""

    def __init__(self, torch: Any, inputs: Any, *, foreign: bool) -> None:
        args, kwargs = inputs
        generators = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Generator)]
        if torch.cuda.is_initialized():
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        entries = [generator_entry(StateKind.TORCH, "", each) for each in [torch.default_generator, *generators]]
        entries += generator_entries() if foreign else []  # a foreign operator may use any generator
        self._states = [(each.put_back, each.read()) for each in entries]
        self.processor = self._states[0][1]

    def restore(self) -> None:
        """Restore all states."""
        for put_back, state in self._states:
            put_back(state)


# Inputs in files


def encode(torch: Any, value: Any) -> Any:
    """Return a value in which texts stand for dtypes and the like, so that it is loaded without unpickling objects."""
    if type(value) in (list, tuple):
        return [encode(torch, item) for item in value]
    if type(value) is dict:
        return {key: encode(torch, item) for key, item in value.items()}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value).partition("torch.")[2]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    return None if isinstance(value, torch.Generator) else value


def decode(torch: Any, value: Any) -> Any:
    """Return the value that encode() was given."""
    if type(value) is list:
        return [decode(torch, item) for item in value]
    if type(value) is dict and list(value) == ["torch"]:
        return getattr(torch, value["torch"])
    if type(value) is dict and list(value) == ["device"]:
        return torch.device(value["device"])
    if type(value) is dict:
        return {key: decode(torch, item) for key, item in value.items()}
    return value


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
    return PytorchRepeat(torch, PytorchOperator(torch, function), function, args, kwargs).execute
