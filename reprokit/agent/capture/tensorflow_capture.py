"""Captures the steps of TensorFlow 2 and Keras whose gradients or loss are not finite, before they are applied.

Gradients are tested when an optimizer applies them: in eager code just before, in graphs by the graph itself
(tensorflow_updates). After a call of a function compiled by XLA, a flag variable is checked. An internal error leaves
the training as it is.
"""

from __future__ import annotations

import functools
import sys
import weakref

from ..core import native_module
from ..events import steps as events
from ..tensorflow import private_api
from ..tensorflow.decisions import TensorFlowDecisions
from ..tensorflow.evaluation import is_of_tensorflow
from .random_states import RandomStates
from .settings import NEEDS_KERAS_ON_TENSORFLOW, NEEDS_TENSORFLOW_2, STOP
from .tensorflow_graphs import ReplicaRound, replica, restore_values
from .tensorflow_snapshot import RejectionHandler
from .tensorflow_state import FIT, SCRIPT
from .tensorflow_steps import (
    ALWAYS,
    SOMETIMES,
    AccumulationWindow,
    OutermostCall,
    TrainingState,
    as_one_value,
    is_of_function,
)
from .tensorflow_take import StepTaker
from .tensorflow_updates import UpdateGuard, XlaCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import CaptureSession
    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]

MAX_LOSSES = 16  # of one step
MAX_DRAWN = 10_000


class TensorFlowCapture:
    """Captures steps of TensorFlow and Keras trainings: passes training events to the parts below."""

    def __init__(self, capture: CaptureSession, first: events.EventListener | None = None) -> None:
        self._capture = capture
        self.training = TrainingState()
        self.rejections = RejectionHandler(capture, self.training)
        xla = XlaCalls(self.rejections)
        self.updates = UpdateGuard(self.rejections, xla)
        self.calls = OutermostCalls(self.updates, xla)
        if self.rejections.requested.number is not None:
            self.calls.run = StepTaker(self.rejections, xla).run
        self._events = events.Events(capture.failed)
        for listener in (first, self):
            if listener is not None:
                self._events.add(listener)
        order = self.training.watched
        self._hooks = TensorFlowDecisions(
            self._events, lambda: [variable for watched in order for variable in watched.memory_variables]
        )

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that was just imported."""
        version = old_version()
        if version:
            self._capture.unavailable("tensorflow", version, NEEDS_TENSORFLOW_2)
            return
        if name == "tensorflow":
            self.rejections.random = RandomStates(compiled=native_module.load(self._capture.settings.library))
        self._hooks.watch(name, module)

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        outputs: dict[type[events.TrainingEvent], events.Handler] = {events.OutputComputed: self._output_computed}
        return {
            events.BatchFetched: self._batch_fetched,
            events.LoaderExhausted: self._loader_exhausted,
            events.ForwardBegan: self._forward_began,
            events.ForwardEnded: self._forward_ended,
            events.BackwardBegan: self._backward_began,
            events.LossScaled: self._loss_scaled,
            events.VariableChanges: self._variable_changes,
            events.RandomDrawn: self._random_drawn,
            events.GradientsDue: self._gradients_due,
            events.FunctionDue: self.calls.function_due,
            events.ReplicasDue: self.calls.replicas_due,
            **(outputs if self._capture.settings.conditions.activations else {}),
        }

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self.training.forget()
        self.updates.rollback.forget()

    def _gradients_due(self, event: events.GradientsDue) -> None:
        if is_of_tensorflow(event.optimizer):
            self.updates.gradients_due(event)
        else:
            self._capture.unavailable("keras", sys.modules["keras"].__version__, NEEDS_KERAS_ON_TENSORFLOW)

    # Batches and tapes

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        thread_state = self.training.thread_state
        if private_api.executing_eagerly():
            thread_state.fetched.add(event.began, event.batch, thread_state.step)
        else:
            private_api.default_graph()._reprokit_batch = event.batch

    def _loader_exhausted(self, event: events.LoaderExhausted) -> None:
        thread_state = self.training.thread_state
        thread_state.fetched.ended(event.began, thread_state.step)

    def _forward_began(self, _event: events.ForwardBegan) -> None:
        step = self.training.step()
        if step is None or (step.is_over and (step.graph is None or step.is_fresh is not step.is_of_graph)):
            step = self.training.begin_step()
        step.open_tapes += 1
        step.is_begun = True

    def _forward_ended(self, _event: events.ForwardEnded) -> None:
        step = self.training.step()
        if step is not None:
            step.open_tapes = max(0, step.open_tapes - 1)

    # Losses and outputs

    def _backward_began(self, event: events.BackwardBegan) -> None:
        step, call = self.training.step(), self.training.call()
        if step is None:
            return
        step.differentiated = True
        if step.graph is not None and call is not None:
            call.record.differentiates = True
            call.record.graph = weakref.ref(step.graph)
            call.steps = [*call.steps, step]
        flat = sys.modules["tensorflow"].nest.flatten(event.tensors)
        losses = [tensor for tensor in flat if getattr(getattr(tensor, "dtype", None), "is_floating", False)]
        step.values.losses = [*step.values.losses, *losses][-MAX_LOSSES:]

    def _loss_scaled(self, event: events.LossScaled) -> None:
        step = self.training.step()
        if step is not None and hasattr(event.loss, "dtype"):
            step.values.unscaled = event.loss

    def _output_computed(self, event: events.OutputComputed) -> None:
        """Test a layer's outputs, if activations are to be checked."""
        if not hasattr(event.module, "weights") or not is_of_tensorflow(event.module):  # a loss is no layer
            return
        step = self.training.step()
        if step is None or step.differentiated:
            return
        if step.graph is not None and step.graph is not private_api.default_graph():
            return
        tensorflow = sys.modules["tensorflow"]
        flat = [leaf for leaf in tensorflow.nest.flatten(event.output) if getattr(leaf, "dtype", None) is not None]
        floats = [leaf for leaf in flat if hasattr(leaf, "op") or private_api.has_value(leaf)]
        finite = [tensorflow.reduce_all(tensorflow.math.is_finite(leaf)) for leaf in floats if leaf.dtype.is_floating]
        if finite:
            name = str(getattr(event.module, "path", None) or event.module.name)
            step.values.activations.append((name, tensorflow.reduce_all(tensorflow.stack(finite))))

    # Changes of variables, and random numbers

    def _variable_changes(self, event: events.VariableChanges) -> None:
        step = self.training.step()
        if step is None and self._is_building_function():  # as by what is drawn for a batch before the tape
            step = self.training.begin_step()
        if step is not None:
            step.save_value(event.variable)

    @staticmethod
    def _is_building_function() -> bool:
        return not private_api.executing_eagerly() and is_of_function(private_api.default_graph())

    def _random_drawn(self, event: events.RandomDrawn) -> None:
        """Record eager random numbers whose generator's state is unreadable; graphs pass theirs to the host."""
        step = self.training.step() if private_api.has_value(event.drawn) else None
        if step is not None and not step.is_over and len(step.values.drawn) < MAX_DRAWN:
            step.values.drawn.append((event.kind, event.drawn))


def old_version() -> str:
    """Return the version of a TensorFlow 1, whose steps cannot be captured; else an empty string."""
    version = str(getattr(sys.modules.get("tensorflow"), "__version__", ""))
    return version if version.startswith("1.") else ""


class OutermostCalls:
    """Handles outermost calls from eager code, and the steps that a strategy runs in them."""

    def __init__(self, updates: UpdateGuard, xla: XlaCalls) -> None:
        self._rejections = updates.rejections
        self._capture = self._rejections.capture
        self._training = self._rejections.training
        self._rollback = updates.rollback
        self._xla = xla
        self.run: Callable[[OutermostCall], Any] = OutermostCall.run  # executes an outermost call

    def function_due(self, due: events.FunctionDue) -> None:
        """Wrap the call of Keras' train function or of the script's function, even within another."""
        is_observed = self._rejections.requested.number is not None
        if (
            not is_observed
            and due.model is None
            and hasattr(due.function, "python_function")
            and private_api.is_compiled(due.function)
        ):
            due.call = functools.partial(self._xla.call, due.call)
        if self._training.thread_state.call is None and private_api.executing_eagerly():
            call = OutermostCall(due)
            due.call = lambda *_arguments, **_keywords: self._outermost(call)

    def _outermost(self, call: OutermostCall) -> Any:
        """Execute an outermost call. If a capture is to end the training, it ends after the call, even a failed one."""
        self._begin_call(call)
        try:
            result = self.run(call)
        except Exception:
            if call.pending is not None:
                raise call.pending from None
            raise
        finally:
            self._end_call(call)
        if call.pending is not None:
            raise call.pending
        if self._rollback.is_on and call.trains:
            self._capture.attempt(self._rollback.keep_or_roll_back, call.rolls_back)
        return result

    def _begin_call(self, call: OutermostCall) -> None:
        thread_state, record = self._training.thread_state, call.record
        has_window = thread_state.window is not None and thread_state.window.calls
        if call.model is not None or (record.updates == ALWAYS and thread_state.window is not None and not has_window):
            self._rejections.keep_random()
        else:  # it may accumulate gradients for another call's update, or apply those of earlier calls
            window = call.window = thread_state.window = thread_state.window or AccumulationWindow(
                self._training.updates
            )
            if call.trains and not window.calls:
                self._rejections.keep_random()
            self._capture.attempt(window.begin_call, call)
        thread_state.call = call
        self._training.calls.append(call)

    def _end_call(self, call: OutermostCall) -> None:
        """End the call, whether it succeeded or failed."""
        self._training.thread_state.call = None
        self._training.calls.remove(call)
        record = call.record
        if record.trains is None and self._xla.tracing is None:
            record.trains = False
        if record.updates and any(step.differentiated and not step.applied for step in call.steps):
            record.updates = SOMETIMES
        for step in call.steps:
            record.written.update({key: variable for key, (variable, _) in step.variables.saved.items()})
        call.steps = ()
        if call.window is not None:
            self._capture.attempt(call.window.end_call, call)

    # Steps that a strategy runs, be it the strategy that Keras uses where there is none

    def replicas_due(self, due: events.ReplicasDue) -> None:
        if self._training.call() is None:
            return
        replica_round, run = ReplicaRound(), due.call
        due.function = self._step_function(due.function, replica_round)

        def call(function: Function) -> Any:
            result = run(function)
            host = functools.partial(self._rejections.call_host_together, due.strategy, replica_round)
            self._capture.attempt(replica_round.end, host)
            return result

        due.call = call

    def _step_function(self, function: Function, replica_round: ReplicaRound) -> Function:
        status = private_api.module("autograph_status").control_status_ctx()
        converted = private_api.module("autograph").tf_convert(function, status, convert_by_default=False)
        origin = FIT if private_api.is_of_keras(str(getattr(function, "__module__", ""))) else SCRIPT

        def step_function(*arguments: Any, **keywords: Any) -> Any:
            step = self._training.step() if self._xla.tracing is not None else replica_round.step
            step = step or self._training.begin_step()
            step.pinned = True
            batch = (origin, as_one_value(arguments, keywords))
            if replica() is not None:
                replica_round.add(step, batch)
                return converted(*arguments, **keywords)
            step.values.batches = [batch]
            try:
                return converted(*arguments, **keywords)
            finally:
                self._capture.attempt(self._end_step, step)

        step_function.autograph_info__ = None  # type: ignore[attr-defined]
        return step_function

    def _end_step(self, step: TensorFlowStep) -> None:
        """Restore what a rejected step changed after its update, such as metrics, if training goes on."""
        step.pinned = False
        changed = list(step.variables.saved.values())[step.variables.count :]
        if step.finite is None or not step.applied or not changed or self._capture.settings.action == STOP:
            return
        step.is_updating = True
        if step.graph is None:
            restore_values(changed)
        else:
            tensorflow = sys.modules["tensorflow"]
            tensorflow.cond(step.finite, lambda: None, lambda: restore_values(changed))
