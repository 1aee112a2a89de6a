"""Reports the training steps of TensorFlow: in Keras' train functions, in functions of the script, in eager loops."""

from __future__ import annotations

import functools
import sys
import weakref
from _thread import _local

from ..core.patching import replace
from ..events.steps import (
    FirstCallDue,
    ForwardBegan,
    FunctionDue,
    GradientsApplied,
    GradientsDue,
    InputsGiven,
    OptimizerMade,
    TrainFunctionDue,
    UpdateDone,
    UpdateDue,
    tell,
)
from . import private_api
from .evaluation import KerasBatches
from .loops import live_optimizers
from .state import OptimizerStep, optimizer_variables
from .tensors import is_eager, value, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent
    from .state import VariableRecords

ATTRIBUTE = "_reprokit_steps"  # of a function: the optimizers that update in it


class FunctionOptimizer:
    """An optimizer that updates within a tf.function of the script."""

    def __init__(self, optimizer: Any, variables: list[Any]) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.variables = variables
        self.graph: Any = None  # the graph in which it updates, during the call for which the graph is built
        self.is_applied = False  # whether its update was built; a capture may have replaced it
        self.is_built = False  # the same, in the graph that this call builds
        self.is_unconditional = True  # whether it updates in each call
        self.has_begun = False  # whether the begin of its next step was reported, perhaps calls before the update
        self.count_before: int | None = None
        self.other_variables: list[Any] = []  # other variables that the function reads

    def step(self) -> OptimizerStep | None:
        """Return a step of the optimizer; None if the optimizer was deleted."""
        optimizer = self.optimizer()
        return None if optimizer is None else OptimizerStep(optimizer, self.variables, others=self.other_variables)

    def find_other_variables(self) -> None:
        """Find the other variables that the graph reads, once the graph is complete."""
        if self.graph is not None:
            optimizer = self.optimizer()
            own_variables = [] if optimizer is None else optimizer_variables(optimizer)
            trained_ids = {id(private_api.plain(variable)) for variable in [*self.variables, *own_variables]}
            self.other_variables = [variable for variable in self.graph.variables if id(variable) not in trained_ids]
            self.graph = None

    def count(self) -> int | None:
        """Return the optimizer's count of updates; None if it updates in each call, or the count is unreadable."""
        optimizer = None if self.is_unconditional else self.optimizer()
        counter = optimizer and private_api.counter(getattr(optimizer, "inner_optimizer", optimizer))
        if counter is None or (self.count_before is None and not is_readable(counter)):
            return None
        number = view(value(counter))
        return None if number is None else int(number)


_KERAS_STEP: dict[int, FunctionOptimizer] = {}  # marks a call of a train function, which is a step itself


class CallThread(_local):
    """The function that a thread is calling."""

    optimizers: dict[int, FunctionOptimizer] | None = None  # those of the outermost function being called


class StepHooks:
    """Derives steps from calls of functions and updates of optimizers."""

    def __init__(self, agent: Agent, events: Events, records: VariableRecords) -> None:
        self._agent, self._events, self._records = agent, events, records
        self.step_callbacks: tuple[Callable[[Any], object], ...] = ()  # called with the model after each step of Keras
        self.failure_callback: Callable[[BaseException], object] = lambda _error: None
        self._thread = CallThread()
        self._batches: weakref.WeakKeyDictionary[Any, KerasBatches] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that were reported

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            TrainFunctionDue: self._train_function_due,
            FunctionDue: self._function_due,
            GradientsDue: self._gradients_due,
            GradientsApplied: self._gradients_applied,
        }

    # Functions

    def watch_replicas(self) -> None:
        """Patch the threads of replicas, so that each takes part in the step of the thread that starts it."""
        owner = getattr(private_api.module("replicas"), private_api.REPLICA_THREAD, None)
        if owner is not None:
            replace(owner, "__init__", self._make_replica)

    def _make_replica(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(replica: Any, *arguments: Any, **keywords: Any) -> None:
            original(replica, *arguments, **keywords)
            self._agent.attempt(self._share_optimizers, replica, self._thread.optimizers)

        return begin

    def _share_optimizers(self, replica: Any, optimizers: dict[int, FunctionOptimizer] | None) -> None:
        function = replica.main_fn

        def main_fn(*arguments: Any, **keywords: Any) -> Any:
            self._thread.optimizers = optimizers
            return function(*arguments, **keywords)

        replica.main_fn = main_fn

    def _train_function_due(self, event: TrainFunctionDue) -> None:
        if not self._events.update_done:
            return
        batches = KerasBatches(event.model, is_wanted=bool(self._events.inputs_given))
        make, self._batches[event.model] = event.make, batches
        event.make = lambda *arguments, **keywords: batches.call(functools.partial(make, **keywords), *arguments)[0]

    def _function_due(self, event: FunctionDue) -> None:
        if not self._events.update_done or self._thread.optimizers is not None:
            return
        if event.model is not None:
            event.call = functools.partial(self._call_train_function, event.model, event.call)
        elif not self._records.nested and private_api.executing_eagerly():
            event.call = functools.partial(self._call_script_function, event.notes, event.call)

    def _call_train_function(self, model: Any, call: Callable[..., Any], function: Any, *arguments: Any) -> Any:
        """Call a train function of Keras: one step, or several."""
        events, thread = self._events, self._thread
        batches = self._batches.get(model) or KerasBatches(model, is_wanted=False)
        step = OptimizerStep(getattr(model, "optimizer", None), model)
        step.arguments = arguments
        tell(events.update_due, UpdateDue(step))
        if step.arguments is None:
            raise StopIteration
        thread.optimizers = _KERAS_STEP
        try:
            step.results, shares = batches.call(call, function, *step.arguments)
        except BaseException as error:
            self._agent.attempt(self.failure_callback, error)
            raise
        finally:
            thread.optimizers = None
        for callback in self.step_callbacks:
            self._agent.attempt(callback, model)
        for batch in shares:
            tell(events.inputs_given, InputsGiven(model, batch if isinstance(batch, tuple) else (batch,), {}))
        tell(events.update_done, UpdateDone(step))
        return step.results

    def _call_script_function(
        self, notes: Any, call: Callable[..., Any], function: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        """Call a function of the script, in which optimizers may update."""
        thread, known_optimizers = self._thread, getattr(notes, ATTRIBUTE, None)
        thread.optimizers = dict(known_optimizers or {})
        count = len(private_api.concrete_functions(function))
        for optimizer in thread.optimizers.values():  # in one of several graphs it may not update
            optimizer.is_unconditional, optimizer.is_built = optimizer.is_unconditional and count == 1, False
        try:
            if known_optimizers is None and self._events.first_call_due:
                tell(self._events.first_call_due, FirstCallDue(function, arguments, keywords))
            if self._events.forward_began and not thread.optimizers:
                tell(self._events.forward_began, ForwardBegan(function, arguments, keywords, is_compiled=True))
            for optimizer in list(thread.optimizers.values()):
                arguments = self._agent.attempt(self._begin_step, optimizer, arguments) or arguments
            result = call(function, *arguments, **keywords)
            if known_optimizers is None or len(known_optimizers) < len(thread.optimizers):
                self._agent.attempt(setattr, notes, ATTRIBUTE, thread.optimizers)
            is_new = len(private_api.concrete_functions(function)) > count
            for optimizer in thread.optimizers.values():
                if optimizer.is_built or not is_new:  # else this graph only adds gradients up
                    self._agent.attempt(self._end_step, optimizer, result)
        finally:
            thread.optimizers = None
        return result

    def _begin_step(self, optimizer: FunctionOptimizer, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Report the begin of a step; return the arguments for the function, which listeners may replace."""
        optimizer.find_other_variables()
        step = optimizer.step()
        optimizer.count_before = optimizer.count() if optimizer.count_before is None else optimizer.count_before
        if step is None or optimizer.has_begun:
            return None
        optimizer.has_begun = True
        step.arguments = arguments
        tell(self._events.update_due, UpdateDue(step))
        return step.arguments

    def _end_step(self, optimizer: FunctionOptimizer, result: Any) -> None:
        step, count = optimizer.step(), optimizer.count()
        if step is None or not optimizer.is_applied or (count is not None and count == optimizer.count_before):
            return
        optimizer.has_begun, optimizer.count_before = False, count
        flat = sys.modules["tensorflow"].nest.flatten(result)
        step.results = [tensor for tensor in flat if private_api.has_value(tensor)] or None
        tell(self._events.update_done, UpdateDone(step))

    # Updates

    def _gradients_due(self, event: GradientsDue) -> None:
        """Register an optimizer while a function is built; its variables are still unchanged and can be read."""
        if self._events.optimizer_made and event.optimizer not in self._made:
            self._report_optimizers(event.optimizer)
        optimizers = self._thread.optimizers
        is_of_script = optimizers is not None and optimizers is not _KERAS_STEP and not self._records.nested
        if not is_of_script or all(is_eager(gradient) for gradient, _ in event.pairs):
            return
        assert optimizers is not None
        entry = optimizers.get(id(event.optimizer))
        if entry is None:
            entry = optimizers[id(event.optimizer)] = FunctionOptimizer(event.optimizer, [])
        entry.variables += [added for _, added in event.pairs if not any(added is other for other in entry.variables)]
        graph = outermost_graph()
        entry.is_unconditional = entry.is_unconditional and graph is private_api.default_graph()
        if self._events.first_call_due:
            entry.graph = graph
        elif all(map(is_readable, entry.variables)):
            self._begin_step(entry, ())

    def _report_optimizers(self, updating: Any) -> None:
        """Report the optimizers that were made until one of them updates for the first time."""
        for optimizer in [each for each in (*live_optimizers(), updating) if each not in self._made]:
            self._made.add(optimizer)
            tell(self._events.optimizer_made, OptimizerMade(optimizer, optimizer))

    def _gradients_applied(self, event: GradientsApplied) -> None:
        optimizers = self._thread.optimizers
        if self._records.nested or optimizers is _KERAS_STEP:
            return
        if optimizers and id(event.optimizer) in optimizers:
            optimizer = optimizers[id(event.optimizer)]
            optimizer.is_applied = optimizer.is_built = True
        variables = [variable for _, variable in event.pairs]
        self._agent.attempt(self._records.trained, event.optimizer, variables)
        if self._events.update_done and event.pairs and all(is_eager(gradient) for gradient, _ in event.pairs):
            current = current_replica()
            if current is not None and not current[1]:  # replicas update together: the last one reports the step
                return
            tell(self._events.update_done, UpdateDone(OptimizerStep(event.optimizer, variables, is_eager=True)))


def current_replica() -> tuple[int, bool] | None:
    """Return this replica's index, and whether it is this process's last; None outside of replicas."""
    context = sys.modules["tensorflow"].distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None if context is None else (0, True)
    with private_api.ops().init_scope():  # as the index is a tensor
        number, count = int(context.replica_id_in_sync_group), len(context.strategy.extended.worker_devices)
    return number, (number + 1) % count == 0


def outermost_graph() -> Any:
    """Return the graph of the outermost function being built."""
    graph = private_api.default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
        graph = graph.outer_graph
    return graph


def is_readable(variable: Any) -> bool:
    """Return whether a variable is initialized, unlike one that a function creates in its first call."""
    handle = getattr(private_api.primary(private_api.plain(variable)), "handle", None)
    if handle is None or not private_api.has_value(handle):
        return False
    with private_api.ops().init_scope():
        return bool(sys.modules["tensorflow"].raw_ops.VarIsInitializedOp(resource=handle))
