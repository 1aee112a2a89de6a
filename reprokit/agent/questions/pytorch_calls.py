"""Sees each call of an operator of PyTorch, with digests of its inputs and outputs."""

from __future__ import annotations

import sys

from .. import trail_library
from ..capture.torch_state import SnapshotTensors
from ..core.patching import replace
from ..core.signal_errors import pass_on
from ..observing.torch_calls import Operator, passed_on
from ..observing.torch_confirm import COMPILED
from ..observing.torch_inductor import GraphPlaces, graph_class
from ..observing.torch_inputs import STATES
from ..observing.torch_places import BACKWARD, OURS
from ..pytorch import devices, private_api
from ..pytorch.content_digests import PytorchContents
from ..pytorch.dispatch_modes import DispatchModes
from ..pytorch.series import size_of
from ..pytorch.tensors import dtype_name
from .operator_log import DRAWS, NO_OUTPUTS, UNREAD, CallLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..agent import Agent
    from ..capture.store import Part

MAX_TEXTS = 10_000
COMPILERS = ("torch._inductor.codecache", "torch._inductor.output_code")
_ATOMS = frozenset([bool, int, float, complex, str, type(None)])


def source(log: CallLog) -> PytorchCalls | None:
    """Return what sees PyTorch's operators, which has begun to."""
    torch: Any = sys.modules["torch"]
    if not private_api.sees_operators(torch):
        log.agent.warn(f"operators of PyTorch {torch.__version__} cannot be logged: it must be 2.0 or newer")
        return None
    return PytorchCalls(log, torch)


class LoggedOperator(Operator):
    """An operator, and where its results are beside what it returns."""

    def __init__(self, torch: Any, function: Any) -> None:
        super().__init__(function)
        tags = getattr(function, "tags", ())
        arguments = private_api.schema(function).arguments
        self.draws = "generator" in self.names or getattr(torch.Tag, "nondeterministic_seeded", None) in tags
        self.written = [
            (number, argument.name)
            for number, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        # What lies in memory that nobody has filled, or in the storage of a loader's worker, no call has computed.
        given = any("Storage" in str(argument.type) for argument in arguments)
        self.is_silent = self.is_silent or self.is_uninitialized or given
        # What a collective writes is there only when it was waited for.
        self.has_no_outputs_yet = self.name.startswith(("c10d::", "_c10d_functional::"))
        self._is_compared = [not any(word in (name or "") for word in STATES) for name in self.returns]
        first = {self.names[0]} if self.overwrites else set()
        self.unread = first.union(argument.name for argument in arguments if argument.is_out)
        if self.has_no_outputs_yet:
            self.unread |= {name for name in self.names if name.startswith("output")}

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments whose values go in."""
        if not self.unread:
            return [*args, *kwargs.values()]
        named = [*zip(self.names, args), *kwargs.items()]
        return [value for name, value in named if name not in self.unread]

    def results(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Any]:
        """Return what it has returned and written, without states and workspaces that nobody fills."""
        if type(result) is tuple and len(result) == len(self._is_compared):
            result = [value for value, is_compared in zip(result, self._is_compared) if is_compared]
        written = [args[number] if number < len(args) else kwargs.get(name) for number, name in self.written]
        return [result, *written] if None in self.returns or not self.returns else [result]


class PytorchCalls:
    """The calls of this process."""

    def __init__(self, log: CallLog, torch: Any) -> None:
        self._log, self._agent, self._torch = log, log.agent, torch
        self._digests = CallDigests(log.agent, torch)
        self._modes = DispatchModes(torch, self)
        self._operators: dict[Any, LoggedOperator | None] = {}
        self._graphs = GraphPlaces(torch)
        self.watching = False

    def begin(self) -> None:
        """Follow what begins from here on."""
        self._modes.follow_threads()
        self._agent.listeners.append((COMPILERS, self._watch_graphs))
        if not self._modes.can_compile:
            self._agent.warn("before PyTorch 2.10, what torch.compile compiles is executed eagerly while it is logged")

    def watch(self, is_on: bool) -> None:
        """Begin or cease to log."""
        self.watching = is_on
        if is_on:
            self._modes.enter()
        else:
            self._modes.leave()

    # Calls

    def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, and log it."""
        try:
            seen = self._before(mode.places, function, args, kwargs)
        except Exception as error:
            self._agent.failed(self._before, error)
            seen = None
            pass_on(error)
        result = passed_on(self._torch, function, args, kwargs)
        if seen is not None:
            try:
                self._after(seen, args, kwargs, result)
            except Exception as error:
                self._agent.failed(self._after, error)
                pass_on(error)
        return result

    def _before(self, places: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = self._operators.get(function)
        if operator is None:
            if private_api.schema(function) is None:
                return None  # an operator of higher order: those that it is made of are seen
            operator = self._operators[function] = LoggedOperator(self._torch, function)
        if operator.is_silent and not places.made_node():
            return None
        where, phase = places.of_call(3)
        if operator.is_silent or phase == OURS:
            return None
        values, others = _flat(self._torch.Tensor, operator.read(args, kwargs))
        shapes = tuple([(value.dtype, value.shape) for value in values])
        call = self._log.number("operator", (function, shapes), _described, operator, values, args, kwargs)
        node = places.node_name() if phase == BACKWARD else ""
        place = self._log.number("place", (phase, node, *where), _place, phase, node, where)
        flags = NO_OUTPUTS if operator.has_no_outputs_yet else 0
        if operator.draws:
            flags |= DRAWS
            values = [*values, *_states(self._torch, values, others, kwargs.get("device"))]
        inputs = self._digests.of(values, others)
        keeping = _copies(self._log, values) if self._log.keeps(operator.name, where) else None
        return operator, call, place, flags, inputs, keeping

    def _after(self, seen: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        operator, call, place, flags, inputs, keeping = seen
        outputs: Any = 0
        if not flags & NO_OUTPUTS:
            values, others = _flat(self._torch.Tensor, operator.results(args, kwargs, result))
            outputs = self._digests.of(values, others)
            if keeping is not None:
                self._log.keep(keeping, _parts("outputs", values))
        if self._digests.take_unread():
            flags |= UNREAD
        if type(inputs) is not int or type(outputs) is not int:
            inputs, outputs = self._digests.here(inputs), self._digests.here(outputs)
        self._log.put(call, place, flags, inputs, outputs)

    # What torch.compile made

    def _watch_graphs(self, _name: str, module: ModuleType) -> None:
        graph = graph_class(module)
        if graph is not None:
            replace(graph, "__call__", self._make_graph_call)

    def _make_graph_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(graph: Any, inputs: Any) -> Any:
            if not self.watching:
                return original(graph, inputs)
            values, others = _flat(self._torch.Tensor, list(inputs))  # which it empties
            seen = self._agent.attempt(self._before_graph, graph, values, others)
            result = original(graph, inputs)
            if seen is not None:
                self._agent.attempt(self._after_graph, seen, values, result)
            return result

        return call

    def _before_graph(self, graph: Any, values: list[Any], others: list[Any]) -> Any:
        where, phase = self._graphs.of_call(graph)
        shapes = tuple([(value.dtype, value.shape) for value in values])
        operator = self._log.number("operator", (COMPILED, shapes), _named, COMPILED, "", values, {}, {})
        place = self._log.number("place", (phase, "", *where), _place, phase, "", where)
        keeping = _copies(self._log, values) if self._log.keeps(COMPILED, where) else None
        return operator, place, self._digests.of(values, others), keeping

    def _after_graph(self, seen: Any, inputs: list[Any], result: Any) -> None:
        operator, place, digest, keeping = seen
        values, others = _flat(self._torch.Tensor, [*result, *inputs])  # of which it may have changed some
        outputs = self._digests.of(values, others)
        if keeping is not None:
            self._log.keep(keeping, _parts("outputs", values))
        flags = UNREAD if self._digests.take_unread() else 0
        self._log.put(operator, place, flags, self._digests.here(digest), self._digests.here(outputs))


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
    """Return the tensors in arguments or results, and the rest."""
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
        place = next((value.device for value in values if not value.is_cpu), torch.device(device or "cpu"))
        if place.type == "cuda":
            return [torch.cuda.get_rng_state(place)]
        generator = torch.default_generator
    return [generator.get_state()]


class CallDigests:
    """Digests of tensors and numbers together; what lies on a device is digested there."""

    def __init__(self, agent: Agent, torch: Any) -> None:
        path = trail_library.path_of(agent.run)
        self._torch = torch
        self._library = trail_library.Library(path or "")
        self._contents = PytorchContents(self._library, torch, private_api.compiled(torch, path or ""))
        self._texts: dict[str, int] = {}

    def of(self, tensors: list[Any], others: list[Any]) -> Any:
        """Return the digest; of tensors on devices, what `here` makes it of."""
        digest = self._text(others) if others else 0
        if not tensors:
            return digest
        found = self._contents.simple(digest, tensors)
        if found is not None:
            return found
        late = []
        for tensor in tensors:
            if self._is_permuted(tensor):
                salt = trail_library.salt(dtype_name(tensor), (*tensor.shape, *tensor.stride()))
                digest = self._library.fold(digest, tensor.data_ptr(), size_of(tensor), salt)
            elif tensor.is_cpu or tensor.layout is not self._torch.strided or tensor.is_quantized:
                digest = self._contents.tensor(digest, tensor)
            else:
                late.append(devices.digest(self._torch, tensor, self._contents.salt(tensor)))
        return (digest, late) if late else digest

    def _is_permuted(self, tensor: Any) -> bool:
        """Return whether its bytes lie here without gaps, in the order of a transposed matrix or of channels last."""
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

    def here(self, digest: Any) -> int:
        """Return a digest, once those of devices have arrived."""
        if type(digest) is int:
            return digest
        before, late = digest
        for value in self._torch.stack(late).cpu().tolist():
            before = trail_library.mix(before + value)
        return int(before)

    def take_unread(self) -> bool:
        """Return whether a tensor could not be read since this was asked last."""
        was, self._contents.has_unreadable = self._contents.has_unreadable, False
        return was

    def _text(self, others: list[Any]) -> int:
        is_plain = _ATOMS.issuperset(map(type, others))
        text = repr(others if is_plain else [_stable(value) for value in others])
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            found = self._texts[text] = self._library.text(text)
        return found


def _stable(value: Any) -> Any:
    """Return what has the same text in each process."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return [_stable(item) for item in value]
    return str(value) if kind.__module__ == "torch" and kind.__name__ != "Generator" else kind.__name__


def _copies(log: CallLog, tensors: list[Any]) -> list[Part] | None:
    """Return copies of the inputs of a call, as it may change them; None where there is no room."""
    if not log.has_room(sum(map(size_of, tensors))):
        return None
    return _parts("inputs", [tensor.detach().clone() for tensor in tensors])


def _parts(kind: str, tensors: list[Any]) -> list[Part]:
    kept = SnapshotTensors()
    for position, tensor in enumerate(tensors):
        kept.put(f"{kind}.{position}", tensor)
    return kept.parts
