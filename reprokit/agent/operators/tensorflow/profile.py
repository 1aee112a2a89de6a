"""Observes TensorFlow's operators: of executed functions, of graphs of sessions, and eager ones.

A graph is read once, before its first execution; then its executions are counted. In graphs the user's lines are those
that created an operation, and sizes known only at execution are -1.
"""

from __future__ import annotations

import weakref

from ...core import user_frames
from ...core.patching import Function, replace
from ...events.operators import DATA, UPDATE
from ...tensorflow import graphs, private_api
from ...tensorflow.operators import TensorflowOperatorEvents
from ..files import CallRecord
from ..profile import OperatorProfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    from ...tensorflow.operators import EagerCalled
    from .. import Observer

MAX_GRAPHS = 2000
MAX_CALLS = 10_000  # distinct eager calls
MAX_LIST = 64  # tensors in a list that is one input
IN_FUNCTION = "operators of a tf.function are not executed again"
_SETS = frozenset(["Assign", "AssignVariableOp"])  # also initialize an optimizer's variables
_PLAIN = (bool, int, str, bytes)
_KINDS = frozenset(["bool", "int", "float", "string"])


def observe(module: ModuleType, observer: Observer) -> None:
    """Begin to observe TensorFlow, which was just imported."""
    operators = TensorflowProfile(module, observer)
    observer.callbacks.before_writing.append(operators.count_executions)
    observer.callbacks.in_child.append(operators.forget)
    operators.watch_functions()
    operators.watch_sessions()
    operators.events.watch()


class GraphCounts:
    """A function or part of a graph, and the count of its executions."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.calls = 0
        self.counted = 0
        self.updates = False  # contains an optimizer's update: each execution is a step


class TensorflowProfile:
    """Observes the operators executed by TensorFlow in this process."""

    def __init__(self, module: Any, observer: Observer) -> None:
        self._observer = observer
        self.version = str(getattr(module, "__version__", ""))
        self._reader: graphs.GraphReader | None = None
        self._listener = OperatorProfile(observer, self._find)
        self.events = TensorflowOperatorEvents(self._listener, lambda: observer.collecting and observer.sampling.is_on)
        self.forget()
        if observer.confirm and self.version[:2] != "1." and private_api.module("eager") is not None:
            from ..confirm import Confirmer
            from .repeats import TensorflowRepeats

            self._listener.confirmer = Confirmer(observer, TensorflowRepeats(observer, self.events))
            observer.callbacks.at_end.append(self._listener.confirmer.finish)

    def forget(self) -> None:
        """Start afresh, also in a forked child."""
        self._lines: dict[object, dict[str, Any]] = {}
        self._eager: dict[object, CallRecord] = {}
        self._functions: dict[object, GraphCounts] = {}
        self._sessions: weakref.WeakKeyDictionary[Any, dict[object, GraphCounts]] = weakref.WeakKeyDictionary()
        self._graphs: list[GraphCounts] = []
        self._steps_at_update = -1  # number of steps at the last execution of a graph with an update
        if self._listener.confirmer is not None:
            self._listener.confirmer.forget()

    @property
    def reader(self) -> graphs.GraphReader:
        """The reader of graphs; created once TensorFlow knows its devices."""
        if self._reader is None:
            self._reader = graphs.GraphReader(self.version, _default_device())
        return self._reader

    def _common(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the common line of all operators like this one."""
        return self._lines.setdefault(graphs.key_of(line), line)

    def count_executions(self) -> None:
        """Add the new executions of graphs to their lines."""
        for graph in self._graphs:
            more, graph.counted = graph.calls - graph.counted, graph.calls
            for line in graph.lines:
                line["calls"] += more

    # Eager calls

    def _find(self, call: EagerCalled) -> CallRecord | None:
        """Return the record of a call; None if there are too many."""
        frame = next(user_frames.users_frames(call.frame), None)
        place = (frame.f_code, frame.f_lineno) if frame is not None else None
        name, attributes, draws = call.operator.name, call.flat_attributes, None
        plain = tuple([value for value in attributes if type(value) in _PLAIN])
        if graphs.is_parallel(name):
            draws = graphs.draws(private_api.function_graph(value) for value in attributes[1::2])
        key = (name, place, call.is_backward, tuple(map(_signature, call.inputs)), plain, draws)
        record = self._eager.get(key)
        if record is None and len(self._eager) < MAX_CALLS:
            line = self._common(self._describe(call, draws))
            record = self._eager[key] = CallRecord(call.operator, line, graphs.key_of(line))
            for value in call.attributes.values() if graphs.is_of_data(name) else ():
                if private_api.function_graph(value) is not None:
                    self._data_function(value)
        return record

    def _describe(self, call: EagerCalled, draws: bool | None) -> dict[str, Any]:
        flat = [part for value in call.inputs for part in (value[:MAX_LIST] if _is_list(value) else [value])]
        devices = {graphs.kind_of_device(str(getattr(value, "device", "") or "")) for value in flat}
        line = graphs.line_of(
            self.reader.version,
            call.operator.name,
            call.phase,
            max(devices - {""}, default=self.reader.device),  # a GPU if any input is there
            [(_dtype_name(value), _shape(value)) for value in flat],
            _attributes(call),
            call.where,
        )
        if draws is not None:
            line["attributes"]["draws"] = draws
        return line

    # Functions

    def watch_functions(self) -> None:
        """Observe executions of functions that are not called by other functions."""
        module = private_api.module("atomic")
        if hasattr(module, "AtomicFunction"):
            replace(module.AtomicFunction, "call_flat", self._make_call_flat)
            return
        for owner in private_api.eager_functions():
            replace(owner, "call", self._make_call)

    def _make_call_flat(self, original: Function) -> Function:
        executing_eagerly = private_api.module("context").executing_eagerly

        def call_flat(function: Any, *inputs: Any) -> Any:
            if self._observer.collecting and executing_eagerly():
                self._observer.agent.attempt(self._before_function, function)
            return original(function, *inputs)

        return call_flat

    def _make_call(self, original: Function) -> Function:
        def call(function: Any, context: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._observer.collecting and context.executing_eagerly():
                self._observer.agent.attempt(self._before_function, function)
            return original(function, context, *arguments, **keywords)

        return call

    def _before_function(self, function: Any) -> None:
        """Count a function that is about to be executed."""
        if not self.events.is_busy:
            self._count(self._functions, function.name, lambda graph: self._read_function(function, graph))

    def _count(self, table: dict[object, GraphCounts], key: object, read: Callable[[GraphCounts], object]) -> None:
        """Count an execution of the graph of a key; read it before the first one."""
        graph = table.get(key)
        if graph is not None:
            self._add_execution(graph)
        elif len(self._graphs) < MAX_GRAPHS:
            graph = table[key] = GraphCounts()
            try:
                read(graph)
            finally:
                self._graphs.append(graph)  # only now, as the lines may be written while the graph is read
                self._add_execution(graph)

    def _add_execution(self, graph: GraphCounts) -> None:
        """Count an execution. If it is a step, count the previous one now, unless Keras or an optimizer has."""
        graph.calls += 1
        if graph.updates:
            if self._steps_at_update == self._observer.sampling.steps:
                self._observer.step()
            self._steps_at_update = self._observer.sampling.steps

    def _read_function(self, function: Any, graph: GraphCounts) -> None:
        operations = private_api.function_graph(function).get_operations()
        if graphs.is_compiled(function):
            where = graphs.frames_of_user(graphs.frames_of(operations[-1])) if operations else []
            self._write_compiled(graph, [self.reader.compiled(_text(function.name), operations, where)])
            return
        lines = self._read(graph, operations)
        if self._listener.confirmer is not None:
            for line in lines:
                self._listener.confirmer.leave_out(graphs.key_of(line), line, IN_FUNCTION)

    def _read(self, graph: GraphCounts, operations: Iterable[Any], phase: str = "") -> list[dict[str, Any]]:
        """Read the operators of a graph; return the lines of those that its executions call."""
        operators, compiled = self.reader.operators(operations, phase)
        lines = [self._common(line) for line in operators]
        for line in lines:
            self._observer.write("operator", graphs.key_of(line), line)
        lines = [line for line in lines if line["phase"] != DATA]
        graph.updates = any(line["phase"] == UPDATE and line["name"] not in _SETS for line in lines)
        graph.lines += lines
        self._write_compiled(graph, compiled)
        return lines

    def _write_compiled(self, graph: GraphCounts, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self._observer.write("compiled", (line["name"], line["function"], str(line["where"])), line)
            graph.lines.append(line)

    def _data_function(self, function: Any) -> None:
        """Read a function that a new tf.data pipeline will call."""
        name = _text(getattr(function, "name", ""))
        graph = private_api.function_graph(function)
        if graph is None or name in self._functions or len(self._functions) >= MAX_GRAPHS:
            return
        counts = self._functions[name] = GraphCounts()
        self._read(counts, graph.get_operations(), DATA)

    # Sessions

    def watch_sessions(self) -> None:
        """Observe the runs of sessions."""
        session, run, prepared = private_api.runs_of_sessions()
        if session is not None:
            replace(session, run, self._make_do_run)
        if prepared is not None:
            replace(prepared, "__init__", self._make_callable)
            replace(prepared, "__call__", self._make_call_callable)

    def _make_do_run(self, original: Function) -> Function:
        def _do_run(session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, *rest: Any) -> Any:
            if self._observer.collecting:
                self._observer.agent.attempt(self._before_session_run, session, targets, fetches, feeds)
            return original(session, handle, targets, fetches, feeds, *rest)

        return _do_run

    def _before_session_run(self, session: Any, targets: Any, fetches: Any, feeds: Any) -> None:
        key = (*[operation.name for operation in targets], "", *[tensor.name for tensor in fetches])

        def read(graph: GraphCounts) -> None:
            operations = [*targets, *[tensor.op for tensor in fetches]]
            self._read_part(graph, operations, {tensor.op for tensor in feeds if hasattr(tensor, "op")})

        self._count(self._sessions.setdefault(session.graph, {}), key, read)

    def _read_part(self, graph: GraphCounts, operations: Iterable[Any], fed: set[Any]) -> None:
        if self._observer.confirm:
            self._observer.note("operators that sessions of TensorFlow 1 run are named, but not executed again")
        self._read(graph, _needed(operations, fed))

    def _make_callable(self, original: Function) -> Function:
        def initialize(prepared: Any, session: Any, options: Any) -> None:
            original(prepared, session, options)
            prepared._reprokit_options = options

        return initialize

    def _make_call_callable(self, original: Function) -> Function:
        def call(prepared: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._observer.collecting:
                self._observer.agent.attempt(self._before_callable, prepared)
            return original(prepared, *arguments, **keywords)

        return call

    def _before_callable(self, prepared: Any) -> None:
        def read(counts: GraphCounts) -> None:
            options, graph = prepared._reprokit_options, private_api.session_of(prepared).graph
            parts = [*options.fetch, *options.target], options.feed
            ops, fed = ([graph.get_operation_by_name(name.split(":")[0]) for name in names] for names in parts)
            self._read_part(counts, ops, set(fed))

        self._count(self._sessions.setdefault(prepared, {}), "", read)


def _needed(operations: Iterable[Any], fed: set[Any]) -> list[Any]:
    """Return these operations and those that they depend on, in their order of creation."""
    seen: set[Any] = set()
    pending = list(operations)
    while pending:
        operation = pending.pop()
        if operation in seen or operation in fed:
            continue
        seen.add(operation)
        pending += [tensor.op for tensor in operation.inputs]
        pending += operation.control_inputs
    return sorted(seen, key=private_api.number)


def _default_device() -> str:
    """Return the device of operations that name none."""
    return "cuda" if private_api.has_context() and private_api.context().num_gpus() else "cpu"


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


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
        return graphs.shape_of(shape)
    except (TypeError, ValueError):
        return [-1]


def _attributes(call: EagerCalled) -> dict[str, object]:
    """Return the attributes that are plain values, with defaults for missing ones."""
    definition, given = call.operator.definition, call.attributes
    attributes: dict[str, object] = {}
    for attribute in definition.attr:
        value = given.get(attribute.name)
        if attribute.type not in _KINDS:
            continue
        if value is None:
            kind = attribute.default_value.WhichOneof("value")
            value = getattr(attribute.default_value, kind) if kind in ("b", "i", "f", "s") else None
        plain = graphs.simple(value)
        if plain is not None:
            attributes[attribute.name] = bool(plain) if attribute.type == "bool" else plain
    names = [argument.name for argument in definition.input_arg]
    if "num_parallel_calls" in names and len(names) == len(call.inputs):
        # The number of elements processed in parallel is an input of a pipeline's operator; -1: chosen by TensorFlow.
        attributes["num_parallel_calls"] = int(call.inputs[names.index("num_parallel_calls")])
    return attributes
