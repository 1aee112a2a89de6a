"""Observes TensorFlow's eager operators, at both entry points from Python into its runtime.

Observing costs some microseconds a call; in steps that are not sampled, calls are not even counted.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from ..core import user_frames
from ..tensorflow import private_api
from ..tensorflow.operator_doors import EagerCall, OperatorDoors, frames_of_caller
from . import Observer, tensorflow_graphs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..core.patching import Function
    from .tensorflow_operators import TensorflowOperators

MAX_CALLS = 10_000  # distinct calls
MAX_LIST = 64  # tensors in a list that is one input
_PLAIN = (bool, int, str, bytes)
_KINDS = frozenset(["bool", "int", "float", "string"])


class EagerOperatorCall(NamedTuple):
    """A call of an operator: its inputs in order, and its attributes by name."""

    definition: Any
    inputs: Sequence[Any]
    attributes: dict[str, Any]
    is_flat: bool  # inputs are a flat list of tensors; else one entry per argument of the definition


class EagerCalls:
    """Observes the eager calls of this process."""

    def __init__(self, tensorflow: TensorflowOperators, observer: Observer) -> None:
        self._tensorflow = tensorflow
        self._observer = observer
        self._lines: dict[object, dict[str, Any]] = {}
        self._definitions: dict[str, Any] = {}
        self._doors = OperatorDoors(self)
        observer.callbacks.in_child.append(self._lines.clear)

    def watch(self) -> None:
        """Patch the entry points."""
        self._doors.watch()

    @property
    def watching(self) -> bool:
        """Whether calls are observed now; the observer's own are not."""
        observer = self._observer
        return observer.collecting and observer.sampling.is_on and not getattr(self._tensorflow.busy, "now", False)

    def call(self, call: EagerCall, original: Function, arguments: tuple[Any, ...]) -> Any:
        """Execute a call, and count it."""
        line = self._observer.agent.attempt(self._note, call)
        result = original(*arguments)
        if line is not None:
            self._tensorflow.count_call(line)
        return result

    def _definition(self, name: str) -> Any:
        """Return TensorFlow's definition of an operator; None for functions and operators that only move values."""
        if name not in self._definitions:
            definition = private_api.definition(name) if tensorflow_graphs.computes(name) and name[:2] != "__" else None
            self._definitions[name] = definition
        return self._definitions[name]

    def _note(self, eager: EagerCall) -> dict[str, Any] | None:
        """Return the line of a call; None for functions and operators that only move values."""
        definition, inputs, attributes = self._definition(eager.name), eager.inputs, eager.attributes
        if definition is None:
            return None
        name = eager.name
        frame = next(user_frames.users_frames(sys._getframe(3)), None)
        place = (frame.f_code, frame.f_lineno) if frame is not None else None
        plain = tuple([value for value in attributes if type(value) in _PLAIN])
        draws = None
        if tensorflow_graphs.is_parallel(name):
            draws = tensorflow_graphs.draws(private_api.function_graph(value) for value in attributes[1::2])
        key = (name, place, self._doors.in_gradient, tuple(map(_signature, inputs)), plain, draws)
        line = self._lines.get(key)
        if line is None and len(self._lines) < MAX_CALLS:
            call = EagerOperatorCall(definition, inputs, dict(zip(attributes[::2], attributes[1::2])), eager.is_flat)
            line = self._lines[key] = self._tensorflow.line(self._describe(call, draws), write=False)
            self._handle_first_call(call, line)
        return line

    def _handle_first_call(self, call: EagerOperatorCall, line: dict[str, Any]) -> None:
        """Handle the first call of its kind: read the functions of a pipeline, or repeat the call."""
        if tensorflow_graphs.is_of_data(call.definition.name):
            for value in call.attributes.values():
                if private_api.function_graph(value) is not None:
                    self._tensorflow.data_function(value)
        elif self._tensorflow.confirmer is not None:
            self._tensorflow.confirmer.eager(call, line)

    def _describe(self, call: EagerOperatorCall, draws: bool | None) -> dict[str, Any]:
        flat = [part for value in call.inputs for part in (value[:MAX_LIST] if _is_list(value) else [value])]
        devices = {tensorflow_graphs.kind_of_device(str(getattr(value, "device", "") or "")) for value in flat}
        line = tensorflow_graphs.line_of(
            self._tensorflow.reader.version,
            call.definition.name,
            self._phase(call.definition.name),
            max(devices - {""}, default=self._tensorflow.reader.device),  # a GPU if any input is there
            [(_dtype_name(value), _shape(value)) for value in flat],
            _attributes(call),
            user_frames.where(5),
        )
        if draws is not None:
            line["attributes"]["draws"] = draws
        return line

    def _phase(self, name: str) -> str:
        if self._doors.in_gradient:
            return tensorflow_graphs.BACKWARD
        return tensorflow_graphs.phase_of(name, "", frames_of_caller(5))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _signature(value: Any) -> object:
    """Return a fast key of an input's dtype and shape."""
    try:
        return private_api.signature(value)
    except AttributeError:
        return tuple(map(_signature, value[:MAX_LIST])) if _is_list(value) else type(value)


def _dtype_name(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    name = getattr(getattr(dtype, "base_dtype", dtype), "name", None)
    return str(name or type(value).__name__)


def _shape(value: Any) -> list[int]:
    shape = getattr(value, "shape", ())
    try:
        return tensorflow_graphs.shape_of(shape)
    except (TypeError, ValueError):
        return [-1]


def _attributes(call: EagerOperatorCall) -> dict[str, object]:
    """Return the attributes that are plain values, with defaults for missing ones."""
    attributes: dict[str, object] = {}
    for attribute in call.definition.attr:
        value = call.attributes.get(attribute.name)
        if attribute.type not in _KINDS:
            continue
        if value is None:
            kind = attribute.default_value.WhichOneof("value")
            value = getattr(attribute.default_value, kind) if kind in ("b", "i", "f", "s") else None
        plain = tensorflow_graphs.simple(value)
        if plain is not None:
            attributes[attribute.name] = bool(plain) if attribute.type == "bool" else plain
    names = [argument.name for argument in call.definition.input_arg]
    if "num_parallel_calls" in names and len(names) == len(call.inputs):
        # The number of elements processed in parallel is an input of a pipeline's operator; -1: chosen by TensorFlow.
        attributes["num_parallel_calls"] = int(call.inputs[names.index("num_parallel_calls")])
    return attributes
