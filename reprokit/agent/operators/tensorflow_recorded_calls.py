"""Logs each operator call of TensorFlow, eager or in a function, with digests of its inputs and outputs.

During logging, functions are executed operator by operator, without the optimizations of TensorFlow's graphs;
the trail shows whether that is the same training. A function that XLA compiles, or whose operators wait for each
other, is logged as a single call.
"""

from __future__ import annotations

import sys
import weakref

from ..capture.store import Part
from ..core.patching import replace
from ..tensorflow import private_api
from ..tensorflow.function_runs import FunctionRun, attributes_of, count_outputs, flat, function_names
from ..tensorflow.operator_doors import EagerCall, OperatorDoors, frames_of_caller
from ..tensorflow.tensors import view
from ..tensors.array_digests import ArrayCalls, copied_parts, description, signature, stable_value
from . import tensorflow_graphs as graphs
from .operator_log import DRAWS, NO_OUTPUTS, NOT_LOGGED, UNREAD, CallLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any


_RESOURCE, _VARIANT = 20, 21
_WAITING = ("Collective", "Nccl", "Send", "Recv", "_Send", "_Recv")
_FIRST_FLOW = frozenset(["Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"])  # of TensorFlow 1
_ASSIGN = "AssignVariableOp"  # its variable is not read, as it may be uninitialized
MAX_DEPTH = 32  # of nested functions


def source(log: CallLog) -> TensorflowCalls | None:
    """Return the source of TensorFlow's calls; None if its release is unknown, or calls are watched already."""
    if not hasattr(private_api.module("eager"), "TFE_Py_FastPathExecute"):
        log.agent.warn("operators of this TensorFlow cannot be logged: it must be 2.4 or newer", NOT_LOGGED)
        return None
    return None if OperatorDoors.are_watched() else TensorflowCalls(log)


class LoggedCall:
    """A call that is being executed: what was logged before it."""

    __slots__ = ("flags", "handles", "has_hidden_inputs", "inputs", "operator", "place", "saved_inputs")

    def __init__(self, operator: int, place: int, flags: int, inputs: int) -> None:
        self.operator, self.place, self.flags, self.inputs = operator, place, flags, inputs
        self.handles: list[Any] = []  # of variables that the call may change
        self.has_hidden_inputs = False  # it depends on a value that cannot be read
        self.saved_inputs: list[Part] | None = None


class TensorflowCalls(ArrayCalls):
    """Logs the operator calls of TensorFlow in this process."""

    def __init__(self, log: CallLog) -> None:
        super().__init__(log)
        self._doors = OperatorDoors(self)
        self._reader = _ValueReader()
        self._functions = _CalledFunctions(eager=log.eager)
        self._run = FunctionRun(self)
        self._places: dict[tuple[str, str], tuple[int, list[Any]]] = {}
        self._constants: dict[tuple[str, str], Any] = {}

    def begin(self) -> None:
        """Watch the functions through which TensorFlow executes operators, and the graphs of functions."""
        self._execute = self._reader.execute = private_api.executor()
        self._doors.watch()
        self._agent.listeners.append((["tensorflow"], lambda *_: self._functions.watch()))

    # Eager calls

    def call(self, call: EagerCall, original: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Execute a call that came through one of the watched functions, and log it."""
        definition = private_api.definition(call.name)
        if definition is None:
            return self._function(call, original, arguments)
        if not _is_logged(call.name):
            return original(*arguments)
        attributes = dict(zip(call.attributes[::2], call.attributes[1::2]))
        return self._log_call(
            lambda: original(*arguments), call.name, definition, call.inputs, attributes, self._eager_place
        )

    def _eager_place(self, name: str) -> tuple[int, list[Any]]:
        frames = frames_of_caller(6)
        where = graphs.frames_of_user(frames)
        phase = graphs.BACKWARD if self._doors.in_gradient else graphs.phase_of(name, "", frames)
        node = private_api.forward_operator(sys._getframe(6)) if phase == graphs.BACKWARD else ""
        return self._place(phase, node, where), where

    def _place(self, phase: str, node: str, where: list[Any]) -> int:
        call_site = {"phase": phase, "node": node, "where": where}
        return self._log.number("place", (phase, node, *where), lambda: call_site)

    # Functions

    def _function(self, call: EagerCall, original: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Execute a function operator by operator, or as one call."""
        if self._agent.attempt(self._functions.are_followed, self._run, call.name):
            return self._run.run(call.name, call.name, call.inputs)
        name = f"tf.function {graphs.readable(call.name)}"
        return self._log_call(lambda: original(*arguments), name, None, call.inputs, {}, self._eager_place)

    def follows(self, node: Any) -> bool:
        """Return whether the functions that a node calls are executed operator by operator."""
        return all(self._functions.is_followed.get(name) for name in function_names(node))

    def result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any]:
        """Execute a node of a function's graph, and log it."""
        if node.op == "Const":
            return [self._constant(owner, node)]
        attributes = attributes_of(node, definition)
        outputs, flat_attributes = count_outputs(definition, attributes), flat(attributes)

        def execute() -> list[Any]:
            return self._execute(node.op, inputs, flat_attributes, outputs, node.device)

        if not _is_logged(node.op) and not any(function_names(node)):
            return execute()
        name = " ".join([node.op, *map(graphs.readable, function_names(node))])
        return self._log_call(execute, name, definition, inputs, attributes, lambda _: self._node_place(owner, node))  # type: ignore[no-any-return]

    def _constant(self, owner: str, node: Any) -> Any:
        key = owner, node.name
        if key not in self._constants:
            array = sys.modules["tensorflow"].make_ndarray(node.attr["value"].tensor)
            self._constants[key] = private_api.ops().convert_to_tensor(array)
        return self._constants[key]

    def _node_place(self, owner: str, node: Any) -> tuple[int, list[Any]]:
        key = owner, node.name
        if key not in self._places:
            phase, where = self._functions.place(owner, node)
            self._places[key] = self._place(phase, node.name, where), where
        return self._places[key]

    # All calls

    def _before(
        self,
        name: str,
        definition: Any,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        place: Callable[[str], tuple[int, list[Any]]],
    ) -> LoggedCall:
        number, where = place(name)
        read = self._reader.read(inputs, variables=name != _ASSIGN)
        plain = {
            key: stable_value(attributes[key]) for key in sorted(attributes) if key[:1] != "_"
        }  # a map has no order
        simple = {key: value for key, value in plain.items() if graphs.simple(value) is not None}

        def describe() -> dict[str, Any]:
            version = str(sys.modules["tensorflow"].__version__)
            return description("tensorflow", version, name, _device(inputs), read.arrays, **simple)  # type: ignore[no-any-return]

        operator = self._log.number("operator", (name, signature(read.arrays), str(plain)), describe)
        digest = self._digests.of(read.arrays, [read.others, plain])
        call = LoggedCall(operator, number, DRAWS if graphs.DRAWING.match(name) else 0, digest)
        call.handles = read.handles
        call.has_hidden_inputs = read.has_unreadable or (
            definition is not None and definition.is_stateful and not read.handles
        )
        if self._log.saves(name, where) and self._log.reserve(sum(array.nbytes for array in read.arrays)):
            call.saved_inputs = copied_parts("inputs", read.arrays)
        return call

    def _after(self, call: LoggedCall, result: Any) -> None:
        read = self._reader.read([result, *call.handles], variables=True)
        flags = call.flags | (UNREAD if call.has_hidden_inputs or read.has_unreadable else 0)
        outputs = self._digests.of(read.arrays)
        if not read.arrays:
            flags |= NO_OUTPUTS
        # Where hidden inputs exist, outputs that differ must not appear to follow from equal inputs.
        inputs = self._digests.combine(call.inputs, outputs) if call.has_hidden_inputs else call.inputs
        if call.saved_inputs is not None:
            self._log.save(call.saved_inputs, copied_parts("outputs", read.arrays))
        self._log.put(call.operator, call.place, flags, inputs, outputs)


class _CalledFunctions:
    """The functions that were called, with their graphs."""

    def __init__(self, *, eager: bool) -> None:
        self._eager = eager  # also execute functions that XLA compiles operator by operator
        self._called: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._graphs: dict[str, Any] = {}
        self.is_followed: dict[str, bool] = {}  # by name: whether it is executed operator by operator

    def watch(self) -> None:
        """Patch calls of functions, to know each function by its name before it is executed."""
        owner = getattr(private_api.module("atomic"), "AtomicFunction", None)
        if owner is not None:
            replace(owner, "call_flat", self._make_call_flat)

    def _make_call_flat(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_flat(function: Any, *inputs: Any) -> Any:
            self._called[_text(function.name)] = function
            return original(function, *inputs)

        return call_flat

    def are_followed(self, run: FunctionRun, name: str) -> bool:
        """Return whether a function is executed operator by operator."""
        if name not in self.is_followed:
            self._inspect(run, name, private_api.function_graph(self._called.get(name)), MAX_DEPTH)
        return self.is_followed[name]

    def _inspect(self, run: FunctionRun, name: str, graph: Any, depth: int) -> bool:
        if name in self.is_followed:
            return self.is_followed[name]
        self._graphs[name] = graph
        self.is_followed[name] = False  # until it is known, as a function may call itself
        plan = run.plan(name)
        follows = depth > 0 and (self._eager or not plan.is_compiled)
        for node, _, definition, _ in plan.nodes:
            if node.op in _FIRST_FLOW or node.op.startswith(_WAITING) or definition is None:
                follows = False
            for inner in function_names(node):
                callee = None if graph is None else private_api.function_in(graph, inner)
                self._inspect(run, inner, private_api.function_graph(callee), depth - 1)
        self.is_followed[name] = follows
        return follows

    def place(self, owner: str, node: Any) -> tuple[str, list[Any]]:
        """Return phase and place of a node of a function."""
        graph = self._graphs.get(owner)
        if graph is None:
            return graphs.FORWARD, []
        operation = graph.get_operation_by_name(node.name)
        frames = graphs.frames_of(operation)
        return graphs.phase_of(node.op, node.name, frames), graphs.frames_of_user(frames)


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


def _is_logged(name: str) -> bool:
    return graphs.computes(name) and not graphs.is_of_data(name)


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
