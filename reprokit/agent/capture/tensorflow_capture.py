"""Captures the steps of TensorFlow 2 and Keras whose gradients or loss are not finite, before they are applied.

Gradients are tested where an optimizer applies them: in eager code before that, in graphs by the graph itself
(tensorflow_updates). Where a function compiled by XLA is called, a variable is looked at afterwards. A failure of ours
leaves the training as it is.
"""

from __future__ import annotations

import functools
import sys
import weakref

from ..core.native_module import load as load_compiled
from ..events import (
    BackwardBegan,
    BatchFetched,
    Events,
    ForwardBegan,
    ForwardEnded,
    FunctionDue,
    GradientsDue,
    LoaderExhausted,
    LossScaled,
    OutputComputed,
    RandomDrawn,
    ReplicasDue,
    VariableChanges,
)
from ..tensorflow import private_api
from ..tensorflow.decisions import DecisionHooks
from .random_states import RandomStates
from .settings import NEEDS_TENSORFLOW_2, STOP
from .tensorflow_checks import EagerTest
from .tensorflow_graphs import ReplicaRound, put_back, replica
from .tensorflow_state import FIT, SCRIPT
from .tensorflow_steps import ALWAYS, AccumulationWindow, OutermostCall, TrainingState, one_of
from .tensorflow_updates import Rejections, UpdateGuard
from .tensorflow_xla import XlaCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..events import EventListener, Handler, TrainingEvent
    from . import CaptureSession
    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]

MAX_LOSSES = 16  # of one step
MAX_DRAWN = 10_000


class TensorFlowCapture:
    """Listens to trainings by TensorFlow and Keras."""

    def __init__(self, capture: CaptureSession, first: EventListener | None = None) -> None:
        self._capture = capture
        self.training = TrainingState()
        self.rejections = Rejections(capture, self.training)
        xla = XlaCalls(self.rejections)
        self.updates = UpdateGuard(self.rejections, xla)
        self._steps = StepEvents(self.training)
        self.calls = Calls(self.updates, xla)
        self._events = Events()
        for listener in (first, self):
            if listener is not None:
                self._events.add(listener)
        order = self.training.order
        self._hooks = DecisionHooks(self._events, lambda: [one for known in order for one in known.remembering])

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that has just been executed."""
        version = old_version()
        if version:
            self._capture.unavailable("tensorflow", version, NEEDS_TENSORFLOW_2)
            return
        if name == "tensorflow":
            path = self._capture.settings.library
            library = self._capture.attempt(_library, path)
            compiled = self._capture.attempt(load_compiled, path) if library is not None else None
            self.rejections.random = RandomStates(library, None, compiled)
            self.updates.test = EagerTest(library, self._capture.settings.conditions)
        self._hooks.watch(name, module)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        steps, calls = self._steps, self.calls
        outputs: dict[type[TrainingEvent], Handler] = {OutputComputed: steps.output_computed}
        return {
            BatchFetched: steps.batch_fetched,
            LoaderExhausted: steps.loader_exhausted,
            ForwardBegan: steps.forward_began,
            ForwardEnded: steps.forward_ended,
            BackwardBegan: steps.backward_began,
            LossScaled: steps.loss_scaled,
            VariableChanges: steps.variable_changes,
            RandomDrawn: steps.random_drawn,
            GradientsDue: self.updates.gradients_due,
            FunctionDue: calls.function_due,
            ReplicasDue: calls.replicas_due,
            **(outputs if self._capture.settings.conditions.activations else {}),
        }

    def failed(self, error: Exception, handler: Handler) -> None:
        """The training goes on, and so do the captures."""
        self._capture.failed(handler, error)

    def forget(self) -> None:
        """Drop what a parent process noted, in a forked child."""
        self.training.forget()
        self.updates.rollback.forget()


def old_version() -> str:
    """Return which TensorFlow is here, if its steps cannot be seen."""
    version = str(getattr(sys.modules.get("tensorflow"), "__version__", ""))
    return version if version.startswith("1.") else ""


def _library(path: str | None) -> Any:
    from ..trail_library import Library

    return None if path is None else Library(path)


class StepEvents:
    """Notes what a step begins with, works on and comes to."""

    def __init__(self, training: TrainingState) -> None:
        self._training = training

    # Batches and tapes

    def batch_fetched(self, event: BatchFetched) -> None:
        here = self._training.here
        if private_api.executing_eagerly():
            here.fetched.add(event.began, event.batch, here.step)
        else:
            private_api.default_graph()._reprokit_batch = event.batch

    def loader_exhausted(self, event: LoaderExhausted) -> None:
        here = self._training.here
        here.fetched.ended(event.began, here.step)

    def forward_began(self, _event: ForwardBegan) -> None:
        step = self._training.step()
        if step is None or (step.over and (step.graph is None or step.graph is private_api.default_graph())):
            step = self._training.begin_step()
        step.tapes += 1

    def forward_ended(self, _event: ForwardEnded) -> None:
        step = self._training.step()
        if step is not None:
            step.tapes = max(0, step.tapes - 1)

    # What it comes to

    def backward_began(self, event: BackwardBegan) -> None:
        step, call = self._training.step(), self._training.call()
        if step is None:
            return
        step.differentiated = True
        if step.graph is not None and call is not None:
            call.traced.differentiates = True
            call.traced.graph = weakref.ref(step.graph)
            call.steps = [*call.steps, step]
        flat = sys.modules["tensorflow"].nest.flatten(event.tensors)
        losses = [one for one in flat if getattr(getattr(one, "dtype", None), "is_floating", False)]
        step.values.losses = [*step.values.losses, *losses][-MAX_LOSSES:]

    def loss_scaled(self, event: LossScaled) -> None:
        step = self._training.step()
        if step is not None and hasattr(event.loss, "dtype"):
            step.values.unscaled = event.loss

    def output_computed(self, event: OutputComputed) -> None:
        """Look at a layer's outputs, where activations are asked for."""
        step = self._training.step()
        if step is None or step.differentiated:
            return
        if step.graph is not None and step.graph is not private_api.default_graph():
            return
        tensorflow = sys.modules["tensorflow"]
        flat = [one for one in tensorflow.nest.flatten(event.output) if getattr(one, "dtype", None) is not None]
        floats = [one for one in flat if hasattr(one, "op") or private_api.has_value(one)]
        finite = [tensorflow.reduce_all(tensorflow.math.is_finite(one)) for one in floats if one.dtype.is_floating]
        if finite:
            name = str(getattr(event.module, "path", None) or event.module.name)
            step.values.activations.append((name, tensorflow.reduce_all(tensorflow.stack(finite))))

    # What it changes

    def variable_changes(self, event: VariableChanges) -> None:
        step = self._training.step()
        if step is not None:
            step.hold(event.variable)

    def random_drawn(self, event: RandomDrawn) -> None:
        """Note what no state tells; graphs hand it out themselves."""
        step = self._training.step() if private_api.has_value(event.drawn) else None
        if step is not None and not step.over and len(step.values.drawn) < MAX_DRAWN:
            step.values.drawn.append((event.kind, event.drawn))


class Calls:
    """Outermost calls of a training from eager code, and the steps that a strategy runs in them."""

    def __init__(self, updates: UpdateGuard, xla: XlaCalls) -> None:
        self._rejections = updates.rejections
        self._capture = self._rejections.capture
        self._training = self._rejections.training
        self._rollback = updates.rollback
        self._xla = xla
        self.run: Callable[[OutermostCall], Any] = OutermostCall.run  # makes an outermost call

    def function_due(self, due: FunctionDue) -> None:
        """A Keras train function, or a function of the script's, be it within another."""
        if due.model is None and hasattr(due.function, "python_function") and private_api.is_compiled(due.function):
            due.call = functools.partial(self._xla.call, due.call)
        if self._training.here.call is None and private_api.executing_eagerly():
            call = OutermostCall(due)
            due.call = lambda *_arguments, **_keywords: self._outermost(call)

    def _outermost(self, call: OutermostCall) -> Any:
        """Make an outermost call. What was captured in it ends the training behind it, also where the call fails."""
        self._begins(call)
        try:
            result = self.run(call)
        except Exception:
            if call.pending is not None:
                raise call.pending from None
            raise
        finally:
            self._ends(call)
        if call.pending is not None:
            raise call.pending
        if self._rollback.is_on and call.trains:
            self._capture.attempt(self._rollback.keep_or_go_back, call.rolls_back)
        return result

    def _begins(self, call: OutermostCall) -> None:
        here, traced = self._training.here, call.traced
        has_window = here.window is not None and here.window.calls
        if call.model is not None or (traced.updates == ALWAYS and here.window is not None and not has_window):
            self._rejections.keep_random()
        else:  # its gradients may wait for another call's update, or those of others for its own
            window = call.window = here.window = here.window or AccumulationWindow(self._training.updates)
            if call.trains and not window.calls:
                self._rejections.keep_random()
            self._capture.attempt(window.opens, call)
        here.call = call
        self._training.calls.append(call)

    def _ends(self, call: OutermostCall) -> None:
        """It is over, in whichever way."""
        self._training.here.call = None
        self._training.calls.remove(call)
        traced = call.traced
        if traced.trains is None and self._xla.tracing is None:
            traced.trains = False
        for step in call.steps:
            traced.written.update({key: variable for key, (variable, _) in step.variables.held.items()})
        call.steps = ()
        if call.window is not None:
            self._capture.attempt(call.window.closes, call)

    # Steps that a strategy runs, be it the strategy that Keras uses where there is none

    def replicas_due(self, due: ReplicasDue) -> None:
        if self._training.call() is None:
            return
        together, run = ReplicaRound(), due.call
        due.function = self._step_function(due.function, together)

        def call(function: Function) -> Any:
            result = run(function)
            host = functools.partial(self._rejections.call_host_together, due.strategy, together)
            self._capture.attempt(together.end, host)
            return result

        due.call = call

    def _step_function(self, fn: Function, together: ReplicaRound) -> Function:
        status = private_api.module("autograph_status").control_status_ctx()
        converted = private_api.module("autograph").tf_convert(fn, status, convert_by_default=False)
        origin = FIT if private_api.is_of_keras(str(getattr(fn, "__module__", ""))) else SCRIPT

        def step_function(*arguments: Any, **keywords: Any) -> Any:
            step = self._training.step() if self._xla.tracing is not None else together.step
            step = step or self._training.begin_step()
            step.pinned = True
            batch = (origin, one_of(arguments, keywords))
            if replica() is not None:
                together.add(step, batch)
                return converted(*arguments, **keywords)
            step.values.batches = [batch]
            try:
                return converted(*arguments, **keywords)
            finally:
                self._capture.attempt(self._step_ends, step)

        step_function.autograph_info__ = None  # type: ignore[attr-defined]
        return step_function

    def _step_ends(self, step: TensorFlowStep) -> None:
        """What a step that was not applied moved after its update, as metrics, is put back where training goes on."""
        step.pinned = False
        moved = list(step.variables.held.values())[step.variables.count :]
        if step.finite is None or not step.applied or not moved or self._capture.settings.action == STOP:
            return
        step.passes = True
        if step.graph is None:
            put_back(moved)
        else:
            tensorflow = sys.modules["tensorflow"]
            tensorflow.cond(step.finite, lambda: None, lambda: put_back(moved))
