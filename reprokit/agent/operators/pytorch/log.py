"""Logs each operator call of PyTorch, with digests of its inputs and outputs: a listener of the events of operators."""

from __future__ import annotations

import os
import sys
from functools import partial

from ...capture.torch_state import SnapshotTensors
from ...core import trail_library
from ...events.operators import BACKWARD
from ...pytorch import private_api
from ...pytorch.compiled_graphs import COMPILERS, CompiledGraph, GraphEvents
from ...pytorch.content_digests import MAX_SALTS, PytorchContents
from ...pytorch.operators import PytorchOperatorEvents
from ...pytorch.places import Places
from ...pytorch.tensors import dtype_name, size_of
from ..device_digests import DeviceSums, PendingDigest
from ..log import DRAWS, NO_OUTPUTS, NOT_LOGGED, UNREAD, CallLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...capture.store import Part
    from ...pytorch.operators import PytorchCalled, PytorchOperator

MAX_TEXTS = 10_000
_ATOMS = frozenset([bool, int, float, complex, str, type(None)])


def source(log: CallLog) -> PytorchCalls | None:
    """Return the source of PyTorch's calls; None and a warning before PyTorch 2.0."""
    torch: Any = sys.modules["torch"]
    if not private_api.sees_operators(torch):
        log.agent.warn(
            f"operators of PyTorch {torch.__version__} cannot be logged: it must be 2.0 or newer", NOT_LOGGED
        )
        return None
    return PytorchCalls(log, torch)


class PytorchCalls:
    """Logs the operator calls of PyTorch in this process."""

    def __init__(self, log: CallLog, torch: Any) -> None:
        self._log, self._agent, self._torch = log, log.agent, torch
        path = trail_library.path_of(log.agent.run) or ""
        compiled = private_api.compiled(torch, path)

        def make_places() -> Places:
            return Places(torch, compiled)

        self._digests = CallDigests(path, torch, compiled)
        self._numbers: dict[Any, int] = {}  # of calls, by operator and the compiled module's keys of shapes
        self._events = PytorchOperatorEvents(torch, self, make_places)
        self._graphs = GraphEvents(torch, log.agent, self, make_places, lambda: self._events.watching)

    def begin(self) -> None:
        """Follow new threads, and compilers as they are imported."""
        os.register_at_fork(after_in_child=self._numbers.clear)
        self._events.modes.follow_threads()
        self._agent.listeners.append((COMPILERS, lambda _, module: self._graphs.watch(module)))
        if not self._events.modes.can_compile:
            self._agent.warn(
                "before PyTorch 2.10, what torch.compile compiles is executed eagerly while it is logged",
                "compiled-eagerly",
            )

    def watch(self, is_on: bool) -> None:
        """Start or stop logging."""
        self._events.watch(is_on)

    # Calls

    def begins(self, call: PytorchCalled) -> Any:
        operator, args, kwargs = call.operator, call.inputs, call.keywords
        if operator.is_uninitialized or operator.takes_storage:
            return None  # no call computes the content of such memory, or of the storage of a loader's worker
        arguments = operator.input_values(args, kwargs)
        digested = None if operator.draws else self._digests.simple(arguments)
        number = None
        if digested is None:
            values, others = _flat(self._torch.Tensor, arguments)
        else:
            values, keys, inputs = digested
            number = self._numbers.get((operator, keys))
        if number is None:
            shapes = tuple([(value.dtype, value.shape) for value in values])
            number = self._log.number("operator", (operator, shapes), _described, operator, values, args, kwargs)
            if digested is not None:
                self._numbers[operator, keys] = number
        node = call.places.node_name() if call.phase == BACKWARD else ""
        place = self._log.number("place", (call.phase, node, *call.where), _place, call.phase, node, call.where)
        flags = NO_OUTPUTS if operator.has_no_outputs_yet else 0
        if operator.draws:
            flags |= DRAWS
            values = [*values, *_states(self._torch, values, others, kwargs.get("device"))]
        if digested is None:
            inputs = self._digests.of(values, others, is_refused=not operator.draws)
        saved_inputs = None
        if self._log.saves(operator.name, call.where):
            saved_inputs = _copies(self._log, values)
            if saved_inputs is not None and type(operator) is not CompiledGraph:
                self._log.save_call(_call(self._torch, operator, values, args, kwargs))
        return number, place, flags, inputs, saved_inputs

    def ended(self, call: PytorchCalled, record: Any) -> None:
        number, place, flags, inputs, saved_inputs = record
        outputs: Any = 0
        if not flags & NO_OUTPUTS:
            returned = call.operator.output_values(call.inputs, call.keywords, call.outputs)
            digested = self._digests.simple(returned)
            if digested is None:
                values, others = _flat(self._torch.Tensor, returned)
                outputs = self._digests.of(values, others, is_refused=True)
            else:
                values, _, outputs = digested
            if saved_inputs is not None:
                self._log.save(saved_inputs, _parts("outputs", values))
        if self._digests.take_unread():
            flags |= UNREAD
        self._log.put(number, place, flags, inputs, outputs)

    def failed(self, _name: str, error: Exception) -> None:
        self._agent.failed(self.begins, error)


def _place(phase: str, node: str, where: list[Any]) -> dict[str, Any]:
    return {"phase": phase, "node": node, "where": where}


def _described(operator: Any, values: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    device = next((value.device for value in values if not value.is_cpu), kwargs.get("device") or "cpu")
    return {
        "framework": "pytorch",
        "version": str(sys.modules["torch"].__version__),
        "name": operator.name,
        "overload": operator.overload,
        "device": str(getattr(device, "type", device)).partition(":")[0],
        "dtypes": [dtype_name(value) for value in values[:64]],
        "shapes": [[int(size) for size in value.shape] if not value.is_nested else [] for value in values[:64]],
        "attributes": operator.attributes(args, kwargs),
    }


def _flat(tensor: type, values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the tensors among arguments or results, and the other values."""
    tensors: list[Any] = []
    others: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is tensor or isinstance(value, tensor):
            tensors.append(value)
        elif kind in _ATOMS:
            others.append(value)
        elif kind in (list, tuple) and any(isinstance(item, tensor) for item in value):
            tensors += [item for item in value if isinstance(item, tensor)]
            others.append([None if isinstance(item, tensor) else item for item in value])
        else:
            others.append(value)
    return tensors, others


def _states(torch: Any, values: list[Any], others: list[Any], device: Any) -> list[Any]:
    """Return the state of the generator that a call draws from."""
    generator = next((value for value in others if isinstance(value, torch.Generator)), None)
    if generator is None:
        drawing_device = next((value.device for value in values if not value.is_cpu), torch.device(device or "cpu"))
        if drawing_device.type == "cuda":
            is_capturing = torch.cuda.is_current_stream_capturing()
            return [] if is_capturing else [torch.cuda.get_rng_state(drawing_device)]
        generator = torch.default_generator
    return [generator.get_state()]


class CallDigests:
    """Computes one digest of tensors and other values; tensors on devices are digested there."""

    def __init__(self, path: str, torch: Any, compiled: Any) -> None:
        self._torch = torch
        self._library = trail_library.Library(path)
        self._contents = PytorchContents(self._library, torch, compiled)
        self._device_sums = DeviceSums(torch)
        self._texts: dict[str, int] = {}
        self._salts: dict[Any, int] = {}
        context = torch.Tensor, torch.nn.Parameter, self._salts, self._salt, self._texts, self._text
        # A function of values: tensors, keys of dtypes and shapes, and the digest; None if of() must compute it.
        self.simple = _nothing if compiled is None else partial(compiled.call_values, context)

    def of(self, tensors: list[Any], others: list[Any], is_refused: bool = False) -> Any:
        """Return the digest; a PendingDigest if tensors are on devices."""
        digest = self._text(others) if others else 0
        if not tensors:
            return digest
        # The module was asked already by simple(); a refusal, as of a sparse tensor, is slow.
        simple = None if is_refused else self._contents.simple(digest, tensors)
        if simple is not None:
            return simple
        on_devices = []
        for tensor in tensors:
            if self._is_permuted(tensor):
                digest = self._library.fold(digest, tensor.data_ptr(), size_of(tensor), _permuted_salt(tensor))
            elif tensor.is_cpu or tensor.layout is not self._torch.strided or tensor.is_quantized:
                digest = self._contents.tensor(digest, tensor)
            elif tensor.is_cuda and self._torch.cuda.is_current_stream_capturing():
                self._contents.has_unreadable = True
            else:
                on_devices.append(tensor)
        if not on_devices:
            return digest
        pending = PendingDigest(digest)
        for tensor in on_devices:
            self._device_sums.begin(pending, tensor, self._contents.salt(tensor))
        return pending

    def _salt(self, tensor: Any) -> int | None:
        """Return the salt of a dense tensor in host memory; None for any other."""
        if len(self._salts) > MAX_SALTS:
            self._salts.clear()
        if self._contents.is_simple(tensor):
            return self._contents.salt(tensor)
        return _permuted_salt(tensor) if self._is_permuted(tensor) else None

    def _is_permuted(self, tensor: Any) -> bool:
        """Return whether a host tensor is dense, in the order of a transposed matrix or of channels last."""
        if (
            type(tensor) not in self._contents.native_state[:2]
            or not tensor.is_cpu
            or tensor.layout is not self._torch.strided
        ):
            return False
        if tensor.is_contiguous() or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return False
        if tensor.dim() == 2:
            return bool(tensor.stride() == (1, tensor.shape[0]))
        return tensor.dim() == 4 and bool(tensor.is_contiguous(memory_format=self._torch.channels_last))

    def take_unread(self) -> bool:
        """Return whether a tensor could not be read since the last call of this method."""
        had_unreadable, self._contents.has_unreadable = self._contents.has_unreadable, False
        return had_unreadable

    def _text(self, others: list[Any]) -> int:
        is_plain = _ATOMS.issuperset(map(type, others))
        text = repr(others if is_plain else [_stable(value) for value in others])
        digest = self._texts.get(text)
        if digest is None:
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            digest = self._texts[text] = self._library.text(text)
        return digest


def _nothing(_values: list[Any]) -> None:
    """Read no values, for lack of the compiled module."""


def _permuted_salt(tensor: Any) -> int:
    return trail_library.salt(dtype_name(tensor), (*tensor.shape, *tensor.stride()))


def _stable(value: Any) -> Any:
    """Return a value whose text is the same in each process."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return [_stable(item) for item in value]
    return str(value) if kind.__module__ == "torch" and kind.__name__ != "Generator" else kind.__name__


def _call(
    torch: Any, operator: PytorchOperator, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return what, with the saved inputs, is needed to execute a call again (reprokit/questions/kept_call.py)."""
    positions = {id(tensor): f"inputs.{position}" for position, tensor in enumerate(inputs)}

    def node(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            layout = {"shape": list(value.shape), "stride": list(value.stride()), "device": str(value.device)}
            return {"tensor": positions.get(id(value)), "dtype": dtype_name(value), **layout}
        if isinstance(value, (list, tuple)):
            return [node(item) for item in value]
        if isinstance(value, complex) or (isinstance(value, float) and value - value != 0):
            return {"number": repr(value).strip("()")}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return None if isinstance(value, torch.Generator) else {"torch": str(value)}

    keywords = {name: node(value) for name, value in kwargs.items()}
    return {"operator": operator.name, "overload": operator.overload, "arguments": node(args), "keywords": keywords}


def _copies(log: CallLog, tensors: list[Any]) -> list[Part] | None:
    """Return copies of a call's inputs, as the call may change them; None if the limit is reached."""
    if not log.reserve(sum(map(size_of, tensors))):
        return None
    return _parts("inputs", [tensor.detach().clone() for tensor in tensors])


def _parts(kind: str, tensors: list[Any]) -> list[Part]:
    snapshot = SnapshotTensors()
    for position, tensor in enumerate(tensors):
        snapshot.put(f"{kind}.{position}", tensor)
    return snapshot.parts
