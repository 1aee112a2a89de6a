"""Lets the updates of TensorFlow's optimizers happen, in eager code and in graphs, where all is finite."""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from ..tensorflow.state import optimizer_variables
from ..tensorflow.tensors import is_eager
from .settings import STOP
from .tensorflow_calls import UpdateSite
from .tensorflow_checks import LAST_LOSSES, UpdateTest
from .tensorflow_graph import building, call_host, conditional, flagged, in_xla, put_back
from .tensorflow_rejection import RollbackState, variables_of
from .tensorflow_replicas import replica
from .tensorflow_snapshot import RejectedStep, local_batch, loss_scale
from .tensorflow_state import LOADER, plain
from .tensorflow_steps import StepValues

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_calls import TrainingState, WatchedOptimizer
    from .tensorflow_checks import EagerTest
    from .tensorflow_rejection import StepHandler
    from .tensorflow_steps import StepTracker, TensorFlowStep
    from .tensorflow_xla import XlaCalls

    Function = Callable[..., Any]


class UpdateGuard:
    """The updates of all optimizers of a process."""

    def __init__(self, steps: StepTracker, training: TrainingState, xla: XlaCalls, handler: StepHandler) -> None:
        self._rejections = xla.rejections
        self.capture = xla.rejections.capture
        self._settings = self.capture.settings
        self._conditions = self.capture.settings.conditions
        self._steps = steps
        self._training = training
        self._compiled = xla
        self._handler = handler
        self.test: EagerTest | None = None  # once TensorFlow is there
        self.rollback: RollbackState = RollbackState(self.capture, training)

    def make_apply(self, original: Function) -> Function:
        by_pairs = original.__name__ == "apply_gradients"

        def apply(optimizer: Any, gradients: Any, *arguments: Any, **keywords: Any) -> Any:
            gradients = list(gradients)
            if self._training.here.applies:
                return original(optimizer, gradients, *arguments, **keywords)
            self._training.here.applies = True
            try:
                pairs = self.capture.attempt(_pairs, optimizer, gradients, by_pairs, arguments, keywords)
                if not pairs:
                    return original(optimizer, gradients, *arguments, **keywords)
                done = self._apply(optimizer, pairs, lambda: original(optimizer, gradients, *arguments, **keywords))
            finally:
                self._training.here.applies = False
            return done if done is not None or not by_pairs else getattr(optimizer, "iterations", None)

        return apply

    def _apply(self, optimizer: Any, pairs: list[tuple[Any, Any]], update: Function) -> Any:
        step = self._steps.current() or self._steps.begin()
        if self._compiled.reveals.tracing is not None:
            self._compiled.reveals.tracing.take(step, optimizer, pairs)
            return None
        if step.graph is not None:
            self._handler.builds(step.graph)
        known, one_of_several = self._training.know(optimizer, pairs), replica()
        if one_of_several is not None:
            return self._apply_together(one_of_several, step, known, pairs, update)
        if all(is_eager(gradient) for gradient, _ in pairs):
            return self._apply_eagerly(step, known, pairs, update)
        try:
            self._apply_in_graph(step, known, pairs, update)
        except Exception as error:
            self.capture.say_once(f"warning: steps are not captured: {type(error).__name__}: {error}")
            return update()
        return None

    def _apply_in_graph(
        self, step: TensorFlowStep, known: WatchedOptimizer, pairs: list[tuple[Any, Any]], update: Function
    ) -> None:
        optimizer, gradients = known.optimizer(), [gradient for gradient, _ in pairs]
        _build(optimizer, [variable for _, variable in pairs])
        call = self._training.current()
        site = UpdateSite(known, [variable for _, variable in pairs], step, call)
        if call is not None:
            call.traced.has_update(sometimes=building() is not step.graph)
        scale = loss_scale(optimizer)
        allowed = None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
        test = UpdateTest(step.values, gradients, self._conditions, known.memory, allowed)
        step.variables.count = len(step.variables.held)
        if in_xla():
            self._compiled.expect(site, step)
            flagged(step, test, update, known.memory)
        else:
            if site.model is not None:
                self._hold_metrics(step, site.model)
            stops = self._settings.action == STOP
            before = step.variables.before
            moved = [*step.variables.held.values(), *step.variables.updated.values()]
            if stops:  # the call begins at the state that the snapshot holds
                moved = list(before.values())
            known.moved.update({key: variable for key, (variable, _) in before.items()})
            self.capture.attempt(step.variables.hold_updated, _updated(known))
            on_host, seen = self._rejections.for_host(site, step, gradients, before)
            conditional(step, test, update, lambda: call_host(on_host, seen), moved, stops=stops)
        step.applied = True

    def _hold_metrics(self, step: TensorFlowStep, model: Any) -> None:
        """Metrics are moved while the host looks at a step."""
        for metric in getattr(model, "metrics", ()):
            for variable in metric.variables:
                self.capture.attempt(step.variables.hold, plain(variable))

    def _apply_together(
        self,
        replica: Any,
        step: TensorFlowStep,
        known: WatchedOptimizer,
        pairs: list[tuple[Any, Any]],
        update: Function,
    ) -> Any:
        """One of several replicas applies gradients that are summed over them."""
        if step.together is None:
            self.capture.say_once("warning: eager steps of several replicas are not captured, only a tf.function's")
            return update()
        if self._conditions.gradient_jump is not None:
            self.capture.say_once("warning: jumps of gradients are not looked for where there are several replicas")
        call, optimizer = self._training.current(), known.optimizer()
        if call is not None:
            call.traced.has_update(sometimes=False)
        step.together.site = UpdateSite(known, [variable for _, variable in pairs], step, call)
        scale = loss_scale(optimizer)
        allowed = None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
        step.together.take(replica, [gradient for gradient, _ in pairs], self._conditions, allowed)
        step.applied = True
        return update()

    def _apply_eagerly(
        self, step: TensorFlowStep, known: WatchedOptimizer, pairs: list[tuple[Any, Any]], update: Function
    ) -> Any:
        if step.finite is False and step.applied:  # it was captured where another optimizer was to update
            known.skipped += 1
            return None
        finite = None if self.test is None else self.capture.attempt(self.test.passes, step.values, known, pairs)
        self._shares(step, known)
        known.moved.update({key: variable for key, (variable, _) in step.variables.held.items()})
        step.variables.count = len(step.variables.held)
        step.applied = True
        if finite is False:
            step.finite = False
            self._found_eagerly(step, known, pairs)
            return None
        if known.shares:
            self.capture.attempt(step.variables.hold_updated, _updated(known))
        step.passes = True
        try:
            result = update()
        finally:
            step.passes = False
        if step.values.loss is not None:
            known.losses = [*known.losses, step.values.loss][-LAST_LOSSES:]
        if self.rollback.is_on and self._training.here.call is None:
            self.capture.attempt(self.rollback.keep_or_go_back, False)
        self._handler.applied(known.optimizer())
        return result

    def _shares(self, step: TensorFlowStep, known: WatchedOptimizer) -> None:
        """Where a further optimizer updates in the same step, what those before it update is held from then on."""
        for other in step.optimizers:
            if other is not known:
                other.shares = True
        step.optimizers.append(known)

    def _found_eagerly(self, step: TensorFlowStep, known: WatchedOptimizer, pairs: list[tuple[Any, Any]]) -> None:
        values = StepValues(step.values.batches or [(LOADER, value) for value in self._training.here.fetched.values])
        values.losses, values.drawn = [] if step.values.loss is None else [step.values.loss], step.values.drawn
        values.activations = [(name, bool(finite)) for name, finite in step.values.activations]
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        found = RejectedStep(known.optimizer(), variables, gradients, values)
        found.models.held = {key: value for key, (_, value) in step.variables.before.items()}
        found.models.moved = variables_of(step.variables.before)
        if not values.batches and self._training.here.call is None:
            values.batches = local_batch(sys._getframe(1))
        if self._conditions.gradient_jump is not None and known.norms.count:
            found.norm_mean = known.norms.mean
        pending = self._rejections.handle(found, known, self._training.current(), sys._getframe(1))
        step.passes = True
        put_back([*step.variables.held.values(), *step.variables.updated.values()])
        step.passes = False
        if pending is not None:
            raise pending
        if self.rollback.is_on and self._training.here.call is None:
            self.capture.attempt(self.rollback.keep_or_go_back, True)


def _updated(known: WatchedOptimizer) -> list[Any]:
    """What an optimizer's update writes to."""
    return [*known.variables, *optimizer_variables(known.optimizer())]


def _pairs(
    optimizer: Any, gradients: list[Any], by_pairs: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> list[tuple[Any, Any]]:
    """The gradients that there are, each with its variable."""
    if by_pairs:
        return [(gradient, variable) for gradient, variable in gradients if gradient is not None]
    variables = (arguments and arguments[0]) or keywords.get("trainable_variables") or private_api.trained(optimizer)
    return [(gradient, variable) for gradient, variable in zip(gradients, variables) if gradient is not None]


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Have an optimizer of Keras 3 make its variables, where it would itself: outside of the condition."""
    backend = private_api.module("keras3")
    if backend is None or getattr(optimizer, "built", True) or not private_api.tracks(optimizer):
        return
    with backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True
