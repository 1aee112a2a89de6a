"""Logs each operator call of TensorFlow, eager or in a function: a listener of the events of operators.

During logging, functions are executed operator by operator, without the optimizations of TensorFlow's graphs;
the trail shows whether that is the same training.
"""

from __future__ import annotations

import sys

from ...tensorflow import graphs, private_api
from ...tensorflow.followed_functions import FollowedFunctions
from ...tensorflow.operators import EagerCalled, TensorflowOperatorEvents
from ...tensorflow.tensors import view
from ..array_digests import ArrayDigests, copied_parts, description, signature, stable_value
from ..log import DRAWS, NO_OUTPUTS, NOT_LOGGED, UNREAD, CallLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ...tensorflow.followed_functions import NodeCalled


_RESOURCE, _VARIANT = 20, 21
_ASSIGN = "AssignVariableOp"  # its variable is not read, as it may be uninitialized


def source(log: CallLog) -> TensorflowCalls | None:
    """Return the source of TensorFlow's calls; None if its release is unknown, or calls are watched already."""
    if not hasattr(private_api.module("eager"), "TFE_Py_FastPathExecute"):
        log.agent.warn("operators of this TensorFlow cannot be logged: it must be 2.4 or newer", NOT_LOGGED)
        return None
    return None if TensorflowOperatorEvents.are_watched() else TensorflowCalls(log)


class TensorflowCalls:
    """Logs the operator calls of TensorFlow in this process."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._digests = ArrayDigests(log.agent)
        self._reader = _ValueReader()
        self._events = FollowedFunctions(log.agent, self, lambda: self._is_watching, eager=log.eager)
        self._is_watching = False

    def begin(self) -> None:
        """Begin to make events, which are logged while this is requested."""
        self._reader.execute = private_api.executor()
        self._events.begin()

    def watch(self, is_on: bool) -> None:
        """Start or stop logging."""
        self._is_watching = is_on

    def begins(self, call: EagerCalled | NodeCalled) -> Any:
        name, definition, inputs = call.operator.name, call.operator.definition, call.inputs
        if isinstance(call, EagerCalled) and definition is not None and graphs.is_of_data(name):
            return None
        place = {"phase": call.phase, "node": call.node, "where": call.where}
        number = self._log.number("place", (call.phase, call.node, *call.where), lambda: place)
        read = self._reader.read(inputs, variables=name != _ASSIGN)
        attributes = call.attributes
        plain = {
            key: stable_value(attributes[key]) for key in sorted(attributes) if key[:1] != "_"
        }  # a map has no order
        simple = {key: value for key, value in plain.items() if graphs.simple(value) is not None}

        def describe() -> dict[str, Any]:
            version = str(sys.modules["tensorflow"].__version__)
            return description("tensorflow", version, name, _device(inputs), read.arrays, **simple)  # type: ignore[no-any-return]

        operator = self._log.number("operator", (name, signature(read.arrays), str(plain)), describe)
        digest = self._digests.of(read.arrays, [read.others, plain])
        flags, saved_inputs = DRAWS if graphs.DRAWING.match(name) else 0, None
        is_stateful = definition is not None and definition.is_stateful and not read.handles
        if self._log.saves(name, call.where) and self._log.reserve(sum(array.nbytes for array in read.arrays)):
            saved_inputs = copied_parts("inputs", read.arrays)
        return operator, number, flags, digest, read.handles, read.has_unreadable or is_stateful, saved_inputs

    def ended(self, call: EagerCalled | NodeCalled, record: Any) -> None:
        operator, place, flags, inputs, handles, has_hidden_inputs, saved_inputs = record
        read = self._reader.read([call.outputs, *handles], variables=True)
        flags |= UNREAD if has_hidden_inputs or read.has_unreadable else 0
        flags |= 0 if read.arrays else NO_OUTPUTS
        outputs = self._digests.of(read.arrays)
        # Where hidden inputs exist, outputs that differ must not appear to follow from equal inputs.
        inputs = self._digests.combine(inputs, outputs) if has_hidden_inputs else inputs
        if saved_inputs is not None:
            self._log.save(saved_inputs, copied_parts("outputs", read.arrays))
        self._log.put(operator, place, flags, inputs, outputs)

    def failed(self, _name: str, error: Exception) -> None:
        self._log.agent.failed(self.begins, error)


class ReadValues:
    """The inputs or the outputs of a call."""

    __slots__ = ("arrays", "handles", "has_unreadable", "others")

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.handles: list[Any] = []  # of variables
        self.others: list[Any] = []
        self.has_unreadable = False  # a value cannot be read


class _ValueReader:
    """Reads tensors and variables without copying, if they are in host memory."""

    def __init__(self) -> None:
        self.execute: Callable[..., list[Any]] = lambda *_: []

    def read(self, values: Iterable[Any], *, variables: bool) -> ReadValues:
        """Return the values of tensors, of variables if asked for, and the other values."""
        result = ReadValues()
        for value in values:
            self._add(result, value, variables)
        return result

    def _add(self, result: ReadValues, value: Any, variables: bool) -> None:
        if isinstance(value, (list, tuple)):
            for part in value:
                self._add(result, part, variables)
        elif hasattr(value, "handle"):
            self._add(result, value.handle, variables)
        elif not private_api.has_value(value):
            if hasattr(value, "__array_interface__"):
                result.arrays.append(sys.modules["numpy"].ascontiguousarray(value))
            else:
                result.others.append(stable_value(value))
        else:
            kind = private_api.signature(value)[0]
            if kind == _RESOURCE:
                self._add_variable(result, value, variables)
            elif kind == _VARIANT:
                result.has_unreadable = True
            else:
                result.arrays.append(_array(value))

    def _add_variable(self, result: ReadValues, handle: Any, variables: bool) -> None:
        kind = private_api.type_in_variable(handle)
        if not kind:
            result.has_unreadable = True
            return
        result.handles.append(handle)
        if variables and self.execute("VarIsInitializedOp", [handle], (), 1)[0].numpy():
            result.arrays.append(_array(self.execute("ReadVariableOp", [handle], ("dtype", kind), 1)[0]))


def _array(tensor: Any) -> Any:
    array = view(tensor)
    return (
        sys.modules["numpy"].ascontiguousarray(tensor.numpy()) if array is None else array
    )  # strings, and tensors on other devices


def _device(inputs: Sequence[Any]) -> str:
    devices = {graphs.kind_of_device(str(getattr(value, "device", "") or "")) for value in inputs}
    return max(devices - {""}, default="cpu")
