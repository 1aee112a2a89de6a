"""Observes TensorFlow: operators of the functions that were executed, of sessions' graphs, and those called eagerly.

A graph is read once, when it is executed for the first time; from then on its executions are counted. In graphs the
user's lines are those that made an operation, and sizes that are known only when it runs are -1.
"""

from __future__ import annotations

import threading
import weakref

from ..core.patching import Function, replace
from ..tensorflow import private_api
from . import Observer, tensorflow_eager, tensorflow_graphs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    from .tensorflow_confirm import TensorflowConfirmer

MAX_GRAPHS = 2000
_SETS = frozenset(["Assign", "AssignVariableOp"])  # which also give an optimizer's variables their first values


def observe(module: ModuleType, observer: Observer) -> None:
    """Begin to observe TensorFlow, which has just been imported."""
    observing = Tensorflow(module, observer)
    observer.callbacks.before_writing.append(observing.count)
    observer.callbacks.in_child.append(observing.forget)
    observing.watch_functions()
    observing.watch_sessions()
    observing.eager.watch()


class _GraphCounts:
    """A function or a part of a graph, and how often it was executed."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.calls = 0
        self.counted = 0
        self.updates = False  # it holds an optimizer's update: an execution is a step


class Tensorflow:
    """What was executed by TensorFlow in this process."""

    def __init__(self, module: Any, observer: Observer) -> None:
        self._observer = observer
        self.version = str(getattr(module, "__version__", ""))
        self._reader: tensorflow_graphs.GraphReader | None = None
        self.busy = threading.local()  # so that what the observer executes itself is not observed
        self.confirmer: TensorflowConfirmer | None = None  # executes operators again, where that was asked for
        self.forget()
        self.eager = tensorflow_eager.EagerCalls(self, observer)
        if observer.confirm and self.version[:2] != "1." and private_api.module("eager") is not None:
            from .tensorflow_confirm import TensorflowConfirmer

            self.confirmer = TensorflowConfirmer(observer, self)
            observer.callbacks.at_end.append(self.confirmer.finish)

    def forget(self) -> None:
        """At the beginning, and in a forked child: what the parent noted is the parent's."""
        self._lines: dict[object, dict[str, Any]] = {}
        self._functions: dict[object, _GraphCounts] = {}
        self._sessions: weakref.WeakKeyDictionary[Any, dict[object, _GraphCounts]] = weakref.WeakKeyDictionary()
        self._graphs: list[_GraphCounts] = []
        self._uncounted = -1  # the number of steps when a graph with an update was last executed
        if self.confirmer is not None:
            self.confirmer.forget()

    @property
    def reader(self) -> tensorflow_graphs.GraphReader:
        """The reader of graphs, made when TensorFlow knows its devices."""
        if self._reader is None:
            self._reader = tensorflow_graphs.GraphReader(self.version, _default_device())
        return self._reader

    def line(self, line: dict[str, Any], *, write: bool = True) -> dict[str, Any]:
        """Return the one line of all operators like this."""
        key = tensorflow_graphs.key_of(line)
        known = self._lines.setdefault(key, line)
        if known is line and write:
            self._observer.write("operator", key, line)
        return known

    def counted(self, line: dict[str, Any]) -> None:
        """An operator was called; one whose call failed is not written."""
        line["calls"] += 1
        if line["calls"] == 1:
            self._observer.write("operator", tensorflow_graphs.key_of(line), line)

    def count(self) -> None:
        """Take over into the lines how often graphs were executed."""
        for graph in self._graphs:
            more, graph.counted = graph.calls - graph.counted, graph.calls
            for line in graph.lines:
                line["calls"] += more

    # Functions

    def watch_functions(self) -> None:
        """See each execution of a function that was not called by another."""
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
                inputs = self._observer.agent.attempt(self._executed, function, inputs) or inputs
            return original(function, *inputs)

        return call_flat

    def _make_call(self, original: Function) -> Function:
        def call(function: Any, context: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._observer.collecting and context.executing_eagerly():
                inputs = self._observer.agent.attempt(self._executed, function, inputs) or inputs
            return original(function, context, inputs, *arguments, **keywords)

        return call

    def _executed(self, function: Any, inputs: Any) -> Any:
        """Return other inputs for a function that is about to be executed, or None."""
        if getattr(self.busy, "now", False):
            return None
        return self._count(self._functions, function.name, lambda known: self._read_function(function, known, inputs))

    def _count(self, table: dict[object, _GraphCounts], key: object, read: Callable[[_GraphCounts], Any]) -> Any:
        """Count an execution of what this key names, which is read before the first; what that returns."""
        known, result = table.get(key), None
        if known is None:
            if len(self._graphs) >= MAX_GRAPHS:
                return None
            known = table[key] = _GraphCounts()
            try:
                result = read(known)
            finally:
                self._graphs.append(known)  # only now: what is read is written meanwhile
                self._executes(known)
        else:
            self._executes(known)
        return result

    def _executes(self, known: _GraphCounts) -> None:
        """Count a graph. If it makes a step, the one before is counted now, unless Keras or an optimizer did."""
        known.calls += 1
        if known.updates:
            if self._uncounted == self._observer.sampling.steps:
                self._observer.step()
            self._uncounted = self._observer.sampling.steps

    def _read_function(self, function: Any, known: _GraphCounts, inputs: Any) -> Any:
        operations = private_api.function_graph(function).get_operations()
        if tensorflow_graphs.is_compiled(function):
            where = tensorflow_graphs.frames_of_user(tensorflow_graphs.frames_of(operations[-1])) if operations else []
            self._write_compiled(known, [self.reader.compiled(_text(function.name), operations, where)])
            return None
        found = self._read(known, operations)
        return None if self.confirmer is None else self.confirmer.function(_text(function.name), inputs, found)

    def _read(
        self, known: _GraphCounts, operations: Iterable[Any], phase: str = ""
    ) -> list[tensorflow_graphs.GraphOperator]:
        found, compiled = self.reader.operators(operations, phase)
        found = [one._replace(line=self.line(one.line)) for one in found]
        known.lines += [one.line for one in found if one.line["phase"] != tensorflow_graphs.DATA]
        known.updates = any(
            line["phase"] == tensorflow_graphs.UPDATE and line["name"] not in _SETS for line in known.lines
        )
        self._write_compiled(known, compiled)
        return found

    def _write_compiled(self, known: _GraphCounts, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self._observer.write("compiled", (line["name"], line["function"], str(line["where"])), line)
            known.lines.append(line)

    def data_function(self, function: Any) -> None:
        """A pipeline of tf.data was made that will call this function."""
        name = _text(getattr(function, "name", ""))
        graph = private_api.function_graph(function)
        if graph is None or name in self._functions or len(self._functions) >= MAX_GRAPHS:
            return
        known = self._functions[name] = _GraphCounts()
        self._read(known, graph.get_operations(), tensorflow_graphs.DATA)

    # Sessions

    def watch_sessions(self) -> None:
        """See what sessions run."""
        session, run, prepared = private_api.runs_of_sessions()
        if session is not None:
            replace(session, run, self._make_do_run)
        if prepared is not None:
            replace(prepared, "__init__", self._make_callable)
            replace(prepared, "__call__", self._make_call_callable)

    def _make_do_run(self, original: Function) -> Function:
        def _do_run(session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, *rest: Any) -> Any:
            if self._observer.collecting:
                self._observer.agent.attempt(self._ran, session, targets, fetches, feeds)
            return original(session, handle, targets, fetches, feeds, *rest)

        return _do_run

    def _ran(self, session: Any, targets: Any, fetches: Any, feeds: Any) -> None:
        key = (*[operation.name for operation in targets], "", *[tensor.name for tensor in fetches])

        def read(known: _GraphCounts) -> None:
            wanted = [*targets, *[tensor.op for tensor in fetches]]
            self._read_part(known, wanted, {tensor.op for tensor in feeds if hasattr(tensor, "op")})

        self._count(self._sessions.setdefault(session.graph, {}), key, read)

    def _read_part(self, known: _GraphCounts, wanted: Iterable[Any], fed: set[Any]) -> None:
        if self._observer.confirm:
            self._observer.note("operators that sessions of TensorFlow 1 run are named, but not executed again")
        self._read(known, _needed(wanted, fed))

    def _make_callable(self, original: Function) -> Function:
        def initialize(prepared: Any, session: Any, options: Any) -> None:
            original(prepared, session, options)
            prepared._reprokit_options = options

        return initialize

    def _make_call_callable(self, original: Function) -> Function:
        def call(prepared: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._observer.collecting:
                self._observer.agent.attempt(self._called, prepared)
            return original(prepared, *arguments, **keywords)

        return call

    def _called(self, prepared: Any) -> None:
        def read(known: _GraphCounts) -> None:
            options, graph = prepared._reprokit_options, private_api.session_of(prepared).graph
            named = [*options.fetch, *options.target], options.feed
            wanted, fed = ([graph.get_operation_by_name(name.split(":")[0]) for name in names] for names in named)
            self._read_part(known, wanted, set(fed))

        self._count(self._sessions.setdefault(prepared, {}), "", read)


def _needed(wanted: Iterable[Any], fed: set[Any]) -> list[Any]:
    """Return the operations that these need, and they themselves, in the order they were made in."""
    seen: set[Any] = set()
    waiting = list(wanted)
    while waiting:
        operation = waiting.pop()
        if operation in seen or operation in fed:
            continue
        seen.add(operation)
        waiting += [tensor.op for tensor in operation.inputs]
        waiting += operation.control_inputs
    return sorted(seen, key=private_api.number)


def _default_device() -> str:
    """Return where an operation runs that names no device."""
    return "cuda" if private_api.has_context() and private_api.context().num_gpus() else "cpu"


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
