"""Executes TensorFlow's functions operator by operator, with an event of each; without optimizations of their graphs.

A function that XLA compiles, or whose operators wait for each other, makes the event of a single call.
"""

from __future__ import annotations

import sys
import weakref

from ..core.patching import replace
from ..events.operators import FORWARD, OperatorCalled
from . import graphs, private_api
from .function_runs import FunctionRun, attributes_of, count_outputs, flat, function_names
from .operators import TensorflowOperator, TensorflowOperatorEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..core.user_frames import Place
    from ..events.operators import OperatorListener
    from .operators import EagerCalled

_WAITING = ("Collective", "Nccl", "Send", "Recv", "_Send", "_Recv")
_FIRST_FLOW = frozenset(["Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"])  # of TensorFlow 1
MAX_DEPTH = 32  # of nested functions


class NodeCalled(OperatorCalled):
    """A node of a function's graph is executed."""

    __slots__ = ("attributes", "node", "phase", "where")
    attributes: dict[str, Any]
    node: str
    phase: str
    where: list[Place]

    def __init__(
        self, operator: TensorflowOperator, inputs: Sequence[Any], attributes: dict[str, Any], node: str, place: Any
    ) -> None:
        super().__init__(operator, inputs)
        self.attributes = attributes
        self.node = node
        self.phase, self.where = place


class FollowedFunctions:
    """Makes the events of eager operators and of those in functions."""

    def __init__(
        self, agent: Agent, listener: OperatorListener, is_watching: Callable[[], bool], *, eager: bool
    ) -> None:
        self._agent = agent
        self._events = TensorflowOperatorEvents(listener, is_watching, self._call_function)
        self._functions = _CalledFunctions(eager=eager)
        self._run = FunctionRun(self)
        self._places: dict[tuple[str, str], tuple[str, list[Place]]] = {}
        self._constants: dict[tuple[str, str], Any] = {}

    def begin(self) -> None:
        """Watch the functions through which TensorFlow executes operators, and the graphs of functions."""
        self._execute = private_api.executor()
        self._events.watch()
        self._agent.listeners.append((["tensorflow"], lambda *_: self._functions.watch()))

    def _call_function(self, call: EagerCalled, original: Callable[[], Any]) -> Any:
        """Execute a function operator by operator, or as one call."""
        name = call.operator.name
        if self._agent.attempt(self._functions.are_followed, self._run, name):
            return self._run.run(name, name, call.inputs)
        call.operator = TensorflowOperator(f"tf.function {graphs.readable(name)}", None)
        call.flat_attributes = ()
        return self._events.execute(call, original)

    def follows(self, node: Any) -> bool:
        """Return whether the functions that a node calls are executed operator by operator."""
        return all(self._functions.is_followed.get(name) for name in function_names(node))

    def result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any]:
        """Execute a node of a function's graph."""
        if node.op == "Const":
            return [self._constant(owner, node)]
        attributes = attributes_of(node, definition)
        outputs, flat_attributes = count_outputs(definition, attributes), flat(attributes)

        def execute() -> list[Any]:
            return self._execute(node.op, inputs, flat_attributes, outputs, node.device)

        called = list(function_names(node))
        if not called and (not graphs.computes(node.op) or graphs.is_of_data(node.op)):
            return execute()
        operator = TensorflowOperator(" ".join([node.op, *map(graphs.readable, called)]), definition)
        event = NodeCalled(operator, inputs, attributes, node.name, self._place(owner, node))
        return self._events.execute(event, execute)  # type: ignore[no-any-return]

    def _constant(self, owner: str, node: Any) -> Any:
        key = owner, node.name
        if key not in self._constants:
            array = sys.modules["tensorflow"].make_ndarray(node.attr["value"].tensor)
            self._constants[key] = private_api.ops().convert_to_tensor(array)
        return self._constants[key]

    def _place(self, owner: str, node: Any) -> tuple[str, list[Place]]:
        key = owner, node.name
        if key not in self._places:
            self._places[key] = self._functions.place(owner, node)
        return self._places[key]


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
            return FORWARD, []
        operation = graph.get_operation_by_name(node.name)
        frames = graphs.frames_of(operation)
        return graphs.phase_of(node.op, node.name, frames), graphs.frames_of_user(frames)


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
