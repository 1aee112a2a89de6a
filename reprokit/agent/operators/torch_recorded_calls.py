"""Logs each operator call of PyTorch, with digests of its inputs and outputs."""

from __future__ import annotations

import os
import sys
from functools import partial

from ..capture.torch_state import SnapshotTensors
from ..core import trail_library
from ..core.patching import replace
from ..core.signal_errors import pass_on
from ..pytorch import private_api
from ..pytorch.content_digests import MAX_SALTS, PytorchContents
from ..pytorch.dispatch_modes import DispatchModes
from ..pytorch.tensors import dtype_name, size_of
from .device_digests import DeviceSums, PendingDigest
from .operator_log import DRAWS, NO_OUTPUTS, NOT_LOGGED, UNREAD, CallLog
from .torch_calls import Operator, passed_on
from .torch_confirm import COMPILED
from .torch_inductor import GraphPlaces, graph_class
from .torch_inputs import comparable_results, is_bytes
from .torch_places import BACKWARD, OURS, Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..capture.store import Part

MAX_TEXTS = 10_000
COMPILERS = ("torch._inductor.codecache", "torch._inductor.output_code")
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


class LoggedOperator(Operator):
    """An operator, with its outputs beside the return value."""

    def __init__(self, torch: Any, function: Any) -> None:
        super().__init__(function)
        self._torch = torch
        tags = getattr(function, "tags", ())
        arguments = private_api.schema(function).arguments
        self.draws = "generator" in self.names or getattr(torch.Tag, "nondeterministic_seeded", None) in tags
        self.written = [
            (number, argument.name)
            for number, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        # No call computes the content of uninitialized memory, or of the shared storage of a loader's worker.
        takes_storage = any("Storage" in str(argument.type) for argument in arguments)
        self.is_silent = self.is_silent or self.is_uninitialized or takes_storage
        # The outputs of a collective are complete only once it was waited for.
        self.has_no_outputs_yet = self.name.startswith(("c10d::", "_c10d_functional::"))
        self._workspaces = {name for name in self.names if "workspace" in name or "reserve" in name}
        first = {self.names[0]} if self.overwrites else set()
        self.unread = first.union(argument.name for argument in arguments if argument.is_out)
        if self.has_no_outputs_yet:
            self.unread |= {name for name in self.names if name.startswith("output")}

    def input_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments whose values are inputs."""
        if not self.unread and not self._workspaces:
            return [*args, *kwargs.values()]
        named = [*zip(self.names, args), *kwargs.items()]
        workspaces = {name for name, value in named if name in self._workspaces and is_bytes(self._torch, value)}
        return [value for name, value in named if name not in self.unread and name not in workspaces]

    def output_values(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Any]:
        """Return the returned and written values, without random states and workspaces that nobody fills."""
        if type(result) is tuple:
            result = comparable_results(self._torch, self, result)
        written = [args[number] if number < len(args) else kwargs.get(name) for number, name in self.written]
        return [result, *written] if None in self.returns or not self.returns else [result]


class PytorchCalls:
    """Logs the operator calls of PyTorch in this process."""

    def __init__(self, log: CallLog, torch: Any) -> None:
        self._log, self._agent, self._torch = log, log.agent, torch
        path = trail_library.path_of(log.agent.run) or ""
        compiled = private_api.compiled(torch, path)
        self._digests = CallDigests(path, torch, compiled)
        self._modes = DispatchModes(torch, self, lambda: Places(torch, compiled))
        self._numbers: dict[Any, int] = {}  # of calls, by operator and the compiled module's keys of shapes
        self._operators: dict[Any, LoggedOperator | None] = {}
        self._graphs = GraphPlaces(torch)
        self.watching = False

    def begin(self) -> None:
        """Follow new threads, and compilers as they are imported."""
        os.register_at_fork(after_in_child=self._numbers.clear)
        self._modes.follow_threads()
        self._agent.listeners.append((COMPILERS, self._watch_graphs))
        if not self._modes.can_compile:
            self._agent.warn("before PyTorch 2.10, what torch.compile compiles is executed eagerly while it is logged")

    def watch(self, is_on: bool) -> None:
        """Start or stop logging."""
        self.watching = is_on
        if is_on:
            self._modes.enter()
        else:
            self._modes.leave()

    # Calls

    def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute a call, and log it."""
        try:
            record = self._before(mode.places, function, args, kwargs)
        except Exception as error:
            self._agent.failed(self._before, error)
            record = None
            pass_on(error)
        result = passed_on(self._torch, function, args, kwargs)
        if record is not None:
            try:
                self._after(record, args, kwargs, result)
            except Exception as error:
                self._agent.failed(self._after, error)
                pass_on(error)
        return result

    def _before(self, places: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = self._operators.get(function)
        if operator is None:
            if private_api.schema(function) is None:
                return None  # an operator of higher order, whose inner operators are seen
            operator = self._operators[function] = LoggedOperator(self._torch, function)
        if operator.is_silent and not places.made_node():
            return None
        where, phase = places.of_call(3)
        if operator.is_silent or phase == OURS:
            return None
        arguments = operator.input_values(args, kwargs)
        digested = None if operator.draws else self._digests.simple(arguments)
        call = None
        if digested is None:
            values, others = _flat(self._torch.Tensor, arguments)
        else:
            values, keys, inputs = digested
            call = self._numbers.get((operator, keys))
        if call is None:
            shapes = tuple([(value.dtype, value.shape) for value in values])
            call = self._log.number("operator", (function, shapes), _described, operator, values, args, kwargs)
            if digested is not None:
                self._numbers[operator, keys] = call
        node = places.node_name() if phase == BACKWARD else ""
        place = self._log.number("place", (phase, node, *where), _place, phase, node, where)
        flags = NO_OUTPUTS if operator.has_no_outputs_yet else 0
        if operator.draws:
            flags |= DRAWS
            values = [*values, *_states(self._torch, values, others, kwargs.get("device"))]
        if digested is None:
            inputs = self._digests.of(values, others, is_refused=not operator.draws)
        saved_inputs = None
        if self._log.saves(operator.name, where):
            saved_inputs = _copies(self._log, values)
            if saved_inputs is not None:
                self._log.save_call(_call(self._torch, operator, values, args, kwargs))
        return operator, call, place, flags, inputs, saved_inputs

    def _after(self, record: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        operator, call, place, flags, inputs, saved_inputs = record
        outputs: Any = 0
        if not flags & NO_OUTPUTS:
            returned = operator.output_values(args, kwargs, result)
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
        self._log.put(call, place, flags, inputs, outputs)

    # Graphs compiled by torch.compile

    def _watch_graphs(self, _name: str, module: ModuleType) -> None:
        graph = graph_class(module)
        if graph is not None:
            replace(graph, "__call__", self._make_graph_call)

    def _make_graph_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(graph: Any, inputs: Any) -> Any:
            if not self.watching:
                return original(graph, inputs)
            values, others = _flat(self._torch.Tensor, list(inputs))  # a copy: the graph empties its list
            record = self._agent.attempt(self._before_graph, graph, values, others)
            result = original(graph, inputs)
            if record is not None:
                self._agent.attempt(self._after_graph, record, values, result)
            return result

        return call

    def _before_graph(self, graph: Any, values: list[Any], others: list[Any]) -> Any:
        where, phase = self._graphs.of_call(graph)
        shapes = tuple([(value.dtype, value.shape) for value in values])
        attributes = {"program": str(getattr(graph, "cache_key", ""))}  # a hash of the generated code
        key = COMPILED, attributes["program"], shapes
        operator = self._log.number("operator", key, _named, COMPILED, "", values, {}, attributes)
        place = self._log.number("place", (phase, "", *where), _place, phase, "", where)
        saved_inputs = _copies(self._log, values) if self._log.saves(COMPILED, where) else None
        return operator, place, self._digests.of(values, others), saved_inputs

    def _after_graph(self, record: Any, inputs: list[Any], result: Any) -> None:
        operator, place, digest, saved_inputs = record
        values, others = _flat(self._torch.Tensor, [*result, *inputs])  # the graph may change inputs in place
        outputs = self._digests.of(values, others)
        if saved_inputs is not None:
            self._log.save(saved_inputs, _parts("outputs", values))
        flags = UNREAD if self._digests.take_unread() else 0
        self._log.put(operator, place, flags, digest, outputs)


def _place(phase: str, node: str, where: list[Any]) -> dict[str, Any]:
    return {"phase": phase, "node": node, "where": where}


def _described(operator: Operator, values: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return _named(operator.name, operator.overload, values, kwargs, operator.attributes(args, kwargs))


def _named(
    name: str, overload: str, values: list[Any], kwargs: dict[str, Any], attributes: dict[str, object]
) -> dict[str, Any]:
    device = next((value.device for value in values if not value.is_cpu), kwargs.get("device") or "cpu")
    return {
        "framework": "pytorch",
        "version": str(sys.modules["torch"].__version__),
        "name": name,
        "overload": overload,
        "device": str(getattr(device, "type", device)).partition(":")[0],
        "dtypes": [dtype_name(value) for value in values[:64]],
        "shapes": [[int(size) for size in value.shape] if not value.is_nested else [] for value in values[:64]],
        "attributes": attributes,
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
    torch: Any, operator: Operator, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
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
