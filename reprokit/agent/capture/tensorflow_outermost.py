"""Outermost calls of a training of TensorFlow from eager code, and the steps that a strategy runs in them."""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from .settings import STOP
from .tensorflow_calls import ALWAYS, AccumulationWindow, FunctionRecord, OutermostCall, one_of
from .tensorflow_graph import put_back
from .tensorflow_replicas import ReplicaRound, replica
from .tensorflow_state import FIT, FUNCTION, SCRIPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_rejection import Rejections, StepHandler
    from .tensorflow_steps import StepTracker, TensorFlowStep
    from .tensorflow_updates import UpdateGuard
    from .tensorflow_xla import XlaCalls

    Function = Callable[..., Any]


class OutermostCalls:
    """Makes the calls of Keras' train functions and of the script's own functions."""

    def __init__(self, rejections: Rejections, handler: StepHandler, xla: XlaCalls, updates: UpdateGuard) -> None:
        self._rejections = rejections
        self._capture = rejections.capture
        self._training = rejections.training
        self._handler = handler
        self._xla = xla
        self._rollback = updates.rollback

    def make_make_train_function(self, original: Function) -> Function:
        """Watch the train functions that Keras makes from now on."""

        def make_train_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            made = original(model, *arguments, **keywords)
            function = model.train_function
            if function is None or hasattr(function, "_reprokit_captured"):
                return made

            traced = FunctionRecord()

            def train_function(*given: Any) -> Any:
                return self._outermost(OutermostCall(FIT, model, function, given, {}, None, traced))

            train_function._reprokit_captured = True  # type: ignore[attr-defined]
            if hasattr(function, "_reprokit_model"):
                train_function._reprokit_model = True  # type: ignore[attr-defined]
            model.train_function = train_function
            return made if made is None else train_function

        return make_train_function

    def make_call(self, original: Function) -> Function:
        """Calls of tf.functions, from eager code and from graphs that are being built."""
        executing_eagerly = private_api.executing_eagerly
        here, compiled = self._training.here, self._xla
        compiled.bare = original

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            by = compiled.call if private_api.is_compiled(function) else original
            if here.call is None and executing_eagerly():
                return self._outermost(OutermostCall(FUNCTION, None, function, arguments, keywords, by))
            return by(function, *arguments, **keywords)

        return call

    def make_concrete_call(self, original: Function) -> Function:
        """The same of a graph of theirs that a script asked for."""
        executing_eagerly = private_api.executing_eagerly

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._training.here.call is None and executing_eagerly():
                return self._outermost(OutermostCall(FUNCTION, None, function, arguments, keywords, original))
            return original(function, *arguments, **keywords)

        return call

    def _outermost(self, call: OutermostCall) -> Any:
        """Make an outermost call. What was captured in it ends the training behind it, also where the call then fails.

        Few functions of ours stand between, and each makes its call early, as TensorFlow takes down at each call who
        called whom from which line, for which Python reads all lines before.
        """
        if not self._begins_call(call):
            return call.run()
        try:
            result = self._handler.outermost(call)
        except Exception:
            if call.pending is not None:
                raise call.pending from None
            raise
        finally:
            self._leaves_call(call)
        if call.pending is not None:
            raise call.pending
        if self._rollback.is_on and call.trains:
            self._capture.attempt(self._rollback.keep_or_go_back, call.rolls_back)
        return result

    def _begins_call(self, call: OutermostCall) -> bool:
        """Whether it is an outermost one."""
        here, traced = self._training.here, call.traced
        if here.call is not None:
            return False
        if call.origin == FIT or (traced.updates == ALWAYS and here.window is not None and not here.window.calls):
            self._rejections.keep_random()
        else:
            self._opens_window(call)
        here.call = call
        self._training.calls.append(call)
        return True

    def _opens_window(self, call: OutermostCall) -> None:
        """Its gradients may wait for another call's update, or those of others for its own."""
        call.trains = call.traced.trains is not False or call.traced.differentiates
        window = call.window = self._training.here.window = self._training.here.window or AccumulationWindow(
            self._training.updates
        )
        if call.trains and not window.calls:
            self._rejections.keep_random()
        self._capture.attempt(window.opens, call)

    def _leaves_call(self, call: OutermostCall) -> None:
        """It is over, in whichever way."""
        self._training.here.call = None
        self._training.calls.remove(call)
        traced = call.traced
        if traced.trains is None and self._xla.reveals.tracing is None:
            traced.trains = False
        for step in call.steps:
            traced.written.update({key: variable for key, (variable, _) in step.variables.held.items()})
        call.steps = ()
        if call.window is not None:
            self._capture.attempt(call.window.closes, call)


class StrategySteps:
    """The steps that a strategy runs, be it the strategy that Keras uses where there is none."""

    def __init__(self, rejections: Rejections, steps: StepTracker, xla: XlaCalls) -> None:
        self._rejections = rejections
        self._capture = rejections.capture
        self._training = rejections.training
        self._steps = steps
        self._xla = xla

    def make_run(self, original: Function) -> Function:
        """A strategy runs a step, be it the strategy that Keras uses where there is none."""

        def run(strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            if self._training.current() is None:
                return original(strategy, fn, args, kwargs, options)
            together = ReplicaRound()
            wrapped = self._capture.attempt(self._wrap_step, fn, together)
            result = original(strategy, fn if wrapped is None else wrapped, args, kwargs, options)
            self._capture.attempt(together.end, lambda: self._rejections.call_host_together(strategy, together))
            return result

        return run

    def _wrap_step(self, fn: Function, together: ReplicaRound) -> Function:
        status = private_api.module("autograph_status").control_status_ctx()
        converted = private_api.module("autograph").tf_convert(fn, status, convert_by_default=False)

        def step_function(*arguments: Any, **keywords: Any) -> Any:
            step = self._steps.current() if self._xla.reveals.tracing is not None else together.step
            step = step or self._steps.begin()
            step.pinned = True
            batch = (FIT if _is_of_keras(fn) else SCRIPT, one_of(arguments, keywords))
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


def _is_of_keras(fn: Any) -> bool:
    return private_api.is_of_keras(str(getattr(fn, "__module__", "")))
