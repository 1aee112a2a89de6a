"""Tells of the steps of TensorFlow: of Keras' train functions, of the script's own, and of loops that run eagerly."""

from __future__ import annotations

import functools
import sys
import weakref
from _thread import _local

from ..events import (
    FirstCallDue,
    FunctionDue,
    GradientsApplied,
    GradientsDue,
    InputsGiven,
    TrainFunctionDue,
    UpdateDone,
    UpdateDue,
    tell,
)
from . import private_api
from .evaluation import BatchesBeside
from .state import OptimizerStep, optimizer_variables
from .tensors import is_eager, value, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agent import Agent
    from ..events import Events, Handler, TrainingEvent
    from .state import VariableRecords

NOTE = "_reprokit_steps"  # at a function: the optimizers that update in it


class FunctionOptimizer:
    """An optimizer that updates in a function of the script's."""

    def __init__(self, optimizer: Any, variables: list[Any]) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.variables = variables
        self.graph: Any = None  # in which it updates, while the call goes on for which it was built
        self.is_applied = False  # its update was built: a capture may have put something else in its place
        self.is_always = True  # in each call, and under no condition
        self.is_due = False  # its next step was told to begin: calls that only add gradients up may come before it
        self.before: int | None = None
        self.others: list[Any] = []  # variables that the function reads besides

    def step(self) -> OptimizerStep | None:
        """Return its step; None where it is gone."""
        optimizer = self.optimizer()
        return None if optimizer is None else OptimizerStep(optimizer, self.variables, others=self.others)

    def learn(self) -> None:
        """Take in what else its graph reads, now that all of it is there."""
        if self.graph is not None:
            optimizer = self.optimizer()
            own = [] if optimizer is None else optimizer_variables(optimizer)
            known = {id(private_api.plain(variable)) for variable in [*self.variables, *own]}
            self.others = [variable for variable in self.graph.variables if id(variable) not in known]
            self.graph = None

    def count(self) -> int | None:
        """Return how many updates it has made; None where it makes one in each call, or that cannot be read."""
        optimizer = None if self.is_always else self.optimizer()
        counter = optimizer and private_api.counter(getattr(optimizer, "inner_optimizer", optimizer))
        if counter is None or (self.before is None and not is_readable(counter)):
            return None
        number = view(value(counter))
        return None if number is None else int(number)


_OF_KERAS: dict[int, FunctionOptimizer] = {}  # a model's train function is being called, which is a step of its own


class CallThread(_local):
    """What a thread is in the middle of."""

    optimizers: dict[int, FunctionOptimizer] | None = None  # of the outermost function that is being called


class StepHooks:
    """Makes steps of calls and updates."""

    def __init__(self, agent: Agent, events: Events, records: VariableRecords) -> None:
        self._agent, self._events, self._records = agent, events, records
        self.taken: tuple[Callable[[Any], object], ...] = ()  # called with the model behind each step of Keras
        self.failed_in: Callable[[BaseException], object] = lambda _error: None
        self._thread = CallThread()
        self._batches: weakref.WeakKeyDictionary[Any, BatchesBeside] = weakref.WeakKeyDictionary()

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            TrainFunctionDue: self._train_function_due,
            FunctionDue: self._function_due,
            GradientsDue: self._gradients_due,
            GradientsApplied: self._gradients_applied,
        }

    # Functions

    def _train_function_due(self, event: TrainFunctionDue) -> None:
        if not self._events.update_done:
            return
        beside = BatchesBeside(event.model, are_wanted=bool(self._events.inputs_given))
        make, self._batches[event.model] = event.make, beside
        event.make = lambda *arguments, **keywords: beside.call(functools.partial(make, **keywords), *arguments)[0]

    def _function_due(self, event: FunctionDue) -> None:
        if not self._events.update_done or self._thread.optimizers is not None:
            return
        if event.model is not None:
            event.call = functools.partial(self._call_of_model, event.model, event.call)
        elif not self._records.nested and private_api.executing_eagerly():
            event.call = functools.partial(self._call_of_script, event.notes, event.call)

    def _call_of_model(self, model: Any, call: Callable[..., Any], function: Any, *arguments: Any) -> Any:
        """Take a step of Keras, or several at once."""
        events, thread = self._events, self._thread
        batches = self._batches.get(model) or BatchesBeside(model, are_wanted=False)
        step = OptimizerStep(getattr(model, "optimizer", None), model)
        step.arguments = arguments
        tell(events.update_due, UpdateDue(step))
        if step.arguments is None:
            raise StopIteration
        thread.optimizers = _OF_KERAS
        try:
            step.results, batch = batches.call(call, function, *step.arguments)
        except BaseException as error:
            self._agent.attempt(self.failed_in, error)
            raise
        finally:
            thread.optimizers = None
        for taken in self.taken:
            self._agent.attempt(taken, model)
        if batch is not None:
            tell(events.inputs_given, InputsGiven(model, batch if isinstance(batch, tuple) else (batch,), {}))
        tell(events.update_done, UpdateDone(step))
        return step.results

    def _call_of_script(
        self, notes: Any, call: Callable[..., Any], function: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        """Call a function, in which optimizers may update."""
        thread, known = self._thread, getattr(notes, NOTE, None)
        thread.optimizers = dict(known or {})
        try:
            if known is None and self._events.first_call_due:
                tell(self._events.first_call_due, FirstCallDue(function, arguments, keywords))
            for one in list(thread.optimizers.values()):
                arguments = self._agent.attempt(self._begin, one, arguments) or arguments
            result = call(function, *arguments, **keywords)
            if known is None or len(known) < len(thread.optimizers):
                self._agent.attempt(setattr, notes, NOTE, thread.optimizers)
            for one in thread.optimizers.values():
                self._agent.attempt(self._end, one, result)
        finally:
            thread.optimizers = None
        return result

    def _begin(self, known: FunctionOptimizer, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Begin a step; return the arguments that the function is to have."""
        known.learn()
        step = known.step()
        known.before = known.count() if known.before is None else known.before
        if step is None or known.is_due:
            return None
        known.is_due = True
        step.arguments = arguments
        tell(self._events.update_due, UpdateDue(step))
        return step.arguments

    def _end(self, known: FunctionOptimizer, result: Any) -> None:
        step, count = known.step(), known.count()
        if step is None or not known.is_applied or (count is not None and count == known.before):
            return
        known.is_due, known.before = False, count
        flat = sys.modules["tensorflow"].nest.flatten(result)
        step.results = [one for one in flat if private_api.has_value(one)] or None
        tell(self._events.update_done, UpdateDone(step))

    # Updates

    def _gradients_due(self, event: GradientsDue) -> None:
        """A function that is built for its first call may read its variables: nothing has changed them yet."""
        optimizers = self._thread.optimizers
        is_of_script = optimizers is not None and optimizers is not _OF_KERAS and not self._records.nested
        if not is_of_script or all(is_eager(gradient) for gradient, _ in event.pairs):
            return
        assert optimizers is not None
        known = optimizers.get(id(event.optimizer))
        if known is None:
            known = optimizers[id(event.optimizer)] = FunctionOptimizer(event.optimizer, [])
        known.variables += [one for _, one in event.pairs if not any(one is other for other in known.variables)]
        graph = outermost_graph()
        known.is_always = known.is_always and graph is private_api.default_graph()
        if self._events.first_call_due:
            known.graph = graph
        elif all(map(is_readable, known.variables)):
            self._begin(known, ())

    def _gradients_applied(self, event: GradientsApplied) -> None:
        optimizers = self._thread.optimizers
        if self._records.nested or optimizers is _OF_KERAS:
            return
        if optimizers and id(event.optimizer) in optimizers:
            optimizers[id(event.optimizer)].is_applied = True
        variables = [variable for _, variable in event.pairs]
        self._agent.attempt(self._records.trained, event.optimizer, variables)
        if self._events.update_done and event.pairs and all(is_eager(gradient) for gradient, _ in event.pairs):
            tell(self._events.update_done, UpdateDone(OptimizerStep(event.optimizer, variables, is_eager=True)))


def outermost_graph() -> Any:
    """Return the graph of the outermost function that is being built."""
    graph = private_api.default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    return graph


def is_readable(variable: Any) -> bool:
    """Return whether a variable has a value, which one lacks that a function makes in its first call."""
    handle = getattr(private_api.plain(variable), "handle", None)
    if handle is None or not private_api.has_value(handle):
        return False
    with private_api.ops().init_scope():
        return bool(sys.modules["tensorflow"].raw_ops.VarIsInitializedOp(resource=handle))
