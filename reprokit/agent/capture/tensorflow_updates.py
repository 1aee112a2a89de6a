"""Applies the updates of TensorFlow's optimizers only if everything is finite, in eager code and in graphs.

A step that must not be applied is described here (a RejectedStep), and then saved, or compared.
"""

from __future__ import annotations

import sys
import weakref

from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.tensors import is_eager
from . import tensorflow_graphs as graphs
from .header import Trigger, in_words
from .settings import ROLLBACK, STOP
from .tensorflow_snapshot import RejectedStep, in_fit, local_batch
from .tensorflow_state import LOADER, SCRIPT, as_array, eager_state, loss_scale, plain, put_variable, read
from .tensorflow_steps import OutermostCall, StepValues, WatchedOptimizer
from .variables import loop_counters, user_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..events.steps import GradientsDue
    from . import CaptureSession
    from .random_states import RandomStates
    from .tensorflow_capture import XlaCalls
    from .tensorflow_steps import TensorFlowStep, TrainingState

    Function = Callable[..., Any]
    Pairs = list[tuple[Any, Any]]  # of gradients, or values, and variables


class UpdateSite:
    """A place in a graph where an optimizer applies gradients."""

    def __init__(
        self, watched: WatchedOptimizer, variables: list[Any], step: TensorFlowStep, call: OutermostCall | None
    ) -> None:
        self.watched = watched
        self.step = step
        self.variables = variables
        # TensorFlow never releases graphs, which refer to this object: the model must not live as long.
        self._model = None if call is None or call.model is None else weakref.ref(call.model)
        self.record = None if call is None else call.record  # of the function that the graph was built in
        self.activations = [name for name, _ in step.values.activations]
        self.random_types: list[str] = []  # types of the operations in random_results()
        self.changed: dict[int, tuple[Any, Any]] = {}  # other variables that the compiled step writes to

    @property
    def model(self) -> Any:
        """The model whose fit it belongs to, if there is one and it still exists."""
        return None if self._model is None else self._model()

    def random_results(self) -> list[Any]:
        """Return the results of operations with a random state of their own, to be passed to the host."""
        draws = graphs.random_operations(self.step.graph)
        self.random_types = [draw.type for draw in draws]
        return [draw.outputs[0] for draw in draws]

    @property
    def updated(self) -> list[Any]:
        """The variables that are tested after the update."""
        return self.variables if self.watched.is_backed_up else []

    @property
    def unreadable(self) -> list[str]:
        """Names of operations with a random state of their own whose results are not passed to the host."""
        graph = self.step.graph
        return [
            operation.name for operation in graphs.random_operations(graph)[len(self.random_types) :]
        ] + graphs.nested_random_operations(graph)


class RejectionHandler:
    """Completes the description of steps that must not be applied, and passes them on."""

    def __init__(self, capture: CaptureSession, training: TrainingState) -> None:
        self.capture = capture
        self.training = training
        self.random: RandomStates | None = None  # of Python and NumPy; set when TensorFlow is imported
        self.reject: Callable[[RejectedStep], None] = self._save  # called with a step that must not be applied
        self._conditions = capture.settings.conditions
        training.step_listeners.append(self._begins)

    def _begins(self, _step: TensorFlowStep) -> None:
        if self.training.thread_state.call is None:
            self.keep_random()

    def keep_random(self) -> None:
        """Save the current random states."""
        if self.random is not None:
            self.random.keep()

    def _save(self, step: RejectedStep) -> None:
        """Save a rejected step, and report it; raises SystemExit if the training is to end."""
        triggers = step.triggers(self._conditions)
        saved = self.capture.attempt(step.contents, self._conditions)
        path = None if saved is None else self.capture.save(saved[0].line(), saved[1])
        self.capture.captured(step.facts.step, in_words(triggers[0]) if triggers else "it is not finite", path)

    def handle(
        self, rejected: RejectedStep, watched: WatchedOptimizer, call: OutermostCall | None, frame: Any
    ) -> BaseException | None:
        """Complete a rejected step and capture it; return the exception that is to end the training, if any."""
        self.capture.attempt(self._complete, rejected, watched, call, frame)
        try:
            self.reject(rejected)
        except SystemExit as error:
            return error
        except Exception as error:
            self.capture.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
            pass_on(error)
        finally:
            watched.skipped += 1
        if call is not None:
            call.rolls_back = True
        return None

    def _complete(
        self, rejected: RejectedStep, watched: WatchedOptimizer, call: OutermostCall | None, frame: Any
    ) -> None:
        state = rejected.state
        state.random = {**({} if self.random is None else self.random.kept()), "eager": eager_state()}
        state.optimizers = self.training.optimizers()
        state.model = None if call is None else call.model
        if state.model is None:
            others = [entry for entry in self.training.watched if entry is not watched]
            state.others = [plain(variable) for entry in others for variable in entry.alive]
            if call is not None:
                self._add_window(rejected, call)
        epoch, steps_in_epoch = in_fit(frame)
        rejected.facts = rejected.facts.with_(
            step=watched.step(state.saved),
            epoch=epoch,
            steps_in_epoch=steps_in_epoch,
            losses=tuple([loss.hex() for loss in watched.last_losses()]),
            trigger=Trigger(where=tuple(user_places(frame))),
        )
        if not rejected.values.batches:
            rejected.notes.append("the batch is not known: nothing was fetched from a data set, and no function called")

    def _add_window(self, rejected: RejectedStep, call: OutermostCall) -> None:
        """Add the batches whose gradients were accumulated, and the state before the first of them."""
        window = call.window
        earlier = [] if window is None else [past for past in window.calls if past.arguments or past.keywords]
        state, values = rejected.state, rejected.values
        if not values.batches and (call.arguments or call.keywords or not earlier):
            values.batches = [(SCRIPT, call.value)]
        values.batches = [*[(SCRIPT, past.value) for past in earlier], *values.batches]
        if window is not None and window.calls:
            state.saved = {**state.saved, **window.before}
            state.changed = [*state.changed, *[past for call in window.calls for past in call.record.written.values()]]
            state.unreadable = [*state.unreadable, *window.unread]

    # In graphs

    def host_callback(
        self, site: UpdateSite, step: TensorFlowStep, gradients: list[Any], saved: dict[int, tuple[Any, Any]]
    ) -> tuple[Callable[[dict[str, Any]], None], dict[str, Any]]:
        """Return a host function for a rejected step of a graph, and the tensors that a snapshot needs."""
        site.changed = saved
        batches = step.values.batches or graphs.batch_in_graph()
        tensors = {
            **_snapshot_tensors(site, step, gradients, batches, saved),
            "loss": step.values.loss,
            "given": graphs.numeric_inputs(step.graph),
        }
        origins = [origin for origin, _ in batches]
        loops = graphs.in_loop()

        def on_host(tensors: dict[str, Any]) -> None:
            rejected = self.of_site(site, tensors, origins)
            call = self.capture.attempt(self.training.call_with_inputs, tensors["given"], site.record)
            self.end_after_call(site, rejected, loops=loops, call=call)

        return on_host, tensors

    def call_host_together(self, strategy: Any, replica_round: graphs.ReplicaRound) -> None:
        """Call the host after the run of several replicas, with the batches of this process's replicas."""
        step, site, number, loops = replica_round.step, replica_round.site, graphs.worker(strategy), graphs.in_loop()
        if step is None or site is None:
            return
        batches, share = step.values.batches, replica_round.shares[0]
        origins = [origin for origin, _ in batches]
        tensors = {
            **_snapshot_tensors(site, step, replica_round.gradients, batches, step.variables.saved),
            "loss": share.loss,
            "where": share.failed_replica,
        }

        def on_host(tensors: dict[str, Any]) -> None:
            rejected = self.of_site(site, tensors, origins)
            rejected.norm_mean = None
            if number is not None:
                rejected.facts = rejected.facts.with_(rank=number[0], world=number[1])
            rejected.notes.append(graphs.FIRST_REPLICA_ONLY)
            rejected.only_replica = int(tensors["where"])
            rejected.values.replicas = [share.number for share in replica_round.shares]
            self.end_after_call(site, rejected, loops=loops)

        graphs.call_host(on_host, tensors)

    def of_site(self, site: UpdateSite, seen: dict[str, Any], origins: list[str]) -> RejectedStep:
        """Return the rejected step of a graph, from the values of its tensors."""
        values = StepValues(zip(origins, seen["batches"]))
        values.losses = [] if seen["loss"] is None else [seen["loss"]]
        values.activations = [(name, bool(is_finite)) for name, is_finite in zip(site.activations, seen["activations"])]
        values.drawn = list(zip(site.random_types, seen.get("drawn", ())))
        rejected = RejectedStep(site.watched.optimizer(), site.variables, seen["gradients"], values)
        rejected.state.unreadable = self.capture.attempt(lambda: site.unreadable) or []
        rejected.state.saved = dict(seen.get("held", ()))
        rejected.after = list(seen.get("after", ()))
        rejected.state.changed = [variable for variable, _ in site.changed.values()]
        self.set_norm_mean(rejected, site.watched)
        return rejected

    def set_norm_mean(self, rejected: RejectedStep, watched: WatchedOptimizer) -> None:
        """Set the mean of the gradients' norms so far, if jumps are looked for."""
        mean, count = as_array(watched.memory.norms).tolist() if self._conditions.gradient_jump is not None else (0, 0)
        rejected.norm_mean = mean if count else None

    def end_after_call(
        self, site: UpdateSite, rejected: RejectedStep, *, loops: bool, call: OutermostCall | None = None
    ) -> None:
        """Handle a rejected step; the training ends after the call, or at once within a graph's loop."""
        call = call or self.training.call()
        if call is not None and call.pending is not None:  # an earlier step of the same graph, which ends the training
            return
        if call is not None and not loops and call.captured is site.step:  # where another optimizer was to update
            site.watched.skipped += 1
            return
        if call is not None:
            call.captured = site.step
        frame = None if call is None else sys._current_frames().get(call.thread)
        pending = self.handle(rejected, site.watched, call, frame)
        if pending is None:
            return
        if rejected.facts.world is not None:
            graphs.wait_for_workers()
        if call is None:
            raise pending
        call.pending = pending
        if loops:
            raise RuntimeError("the step was captured, and no further one is taken")


def _snapshot_tensors(
    site: UpdateSite, step: TensorFlowStep, gradients: list[Any], batches: Any, saved: dict[int, tuple[Any, Any]]
) -> dict[str, Any]:
    """Return the tensors of a graph's step that a snapshot needs."""
    return {
        "gradients": gradients,
        "batches": [value for _, value in batches],
        "held": [(key, value) for key, (_, value) in saved.items()],  # no dictionary, which nest sorts: by addresses
        "activations": [finite for _, finite in step.values.activations],
        "drawn": site.random_results(),
    }


class RollbackState:
    """The state to roll back to, of all variables that optimizers update."""

    def __init__(self, capture: CaptureSession, training: TrainingState) -> None:
        self.is_on = capture.settings.action == ROLLBACK
        self._every = capture.settings.rollback_every
        self._training = training
        self._since = 0
        self._optimizers = 0
        self._saved_values: list[tuple[Any, Any]] = []  # variables and values

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self._saved_values = []

    def keep_or_roll_back(self, rolls_back: bool) -> None:
        """Roll back to the saved state, or save the current one if it is due."""
        if len(self._training.watched) != self._optimizers:  # nothing is saved of a new optimizer
            self._optimizers, self._saved_values = len(self._training.watched), []
        if rolls_back:
            for variable, value in self._saved_values:
                put_variable(variable, value)
            return
        self._since += 1
        if not self._saved_values or self._since >= self._every:
            self._since = 0
            self._saved_values = [(variable, read(variable)) for variable in self._training.variables()]


class UpdateGuard:
    """Guards the updates of all optimizers of this process."""

    def __init__(self, rejections: RejectionHandler, xla: XlaCalls) -> None:
        self.rejections = rejections
        self.rollback = RollbackState(rejections.capture, rejections.training)
        self.applied_listeners: list[Callable[[Any], object]] = []  # called with the optimizer of an applied eager step
        self._capture = rejections.capture
        self._training = rejections.training
        self._settings = self._capture.settings
        self._conditions = self._settings.conditions
        self._xla = xla

    def gradients_due(self, due: GradientsDue) -> None:
        """Replace an update with one that is applied only if everything is finite."""
        optimizer, pairs, update = due.optimizer, due.pairs, due.update
        due.update = lambda: self._apply(optimizer, pairs, update)  # type: ignore[arg-type]

    def _apply(self, optimizer: Any, pairs: Pairs, update: Function) -> Any:
        step = self._training.step() or self._training.begin_step()
        if self._xla.tracing is not None:
            self._xla.record_gradients(step, optimizer, pairs)
            return None
        watched, replica = self._training.watch_optimizer(optimizer, pairs), graphs.replica()
        if step.is_over and watched in step.optimizers:  # the tape of this one recorded in a function
            step = self._training.begin_step()
        if replica is not None:
            return self._apply_together(replica, step, watched, pairs, update)
        if all(is_eager(gradient) for gradient, _ in pairs):
            return self._apply_eagerly(step, watched, pairs, update)
        try:
            self._apply_in_graph(step, watched, pairs, update)
        except Exception as error:
            self._capture.say_once(f"warning: steps are not captured: {type(error).__name__}: {error}")
            pass_on(error)
            return update()
        return None

    # In graphs

    def _apply_in_graph(self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, update: Function) -> None:
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        private_api.build(watched.optimizer(), variables)
        site = self._site(step, watched, variables, sometimes=private_api.default_graph() is not step.graph)
        test = graphs.UpdateTest(step.values, gradients, self._conditions, watched.memory, _may_overflow(watched))
        step.variables.count = len(step.variables.saved)
        if private_api.in_xla():
            self._xla.add_site(site, step)
            graphs.flagged_update(step, test, update, watched.memory)
        else:
            for metric in getattr(site.model, "metrics", ()):  # they change while the host handles a step
                for variable in metric.variables:
                    self._capture.attempt(step.variables.save_value, plain(variable))
            watched.changed.update({key: variable for key, (variable, _) in step.variables.before.items()})
            updated = site.updated
            if updated:
                self._capture.attempt(step.variables.save_updated, watched.updated)
            stops, saved = self._settings.action == STOP, step.variables.before
            changed = [*step.variables.saved.values(), *step.variables.updated.values()]
            if stops:  # the snapshot has the state before the call
                changed = list(saved.values())
            if not updated:  # for a further optimizer in the same step
                self._capture.attempt(step.variables.save_updated, watched.updated)
            on_host, tensors = self.rejections.host_callback(site, step, gradients, saved)

            def host() -> None:
                graphs.call_host(on_host, {**tensors, "after": graphs.current_values(updated)})

            graphs.conditional_update(step, test, update, host, changed, updated, stops=stops)
        step.applied = True

    def _site(
        self, step: TensorFlowStep, watched: WatchedOptimizer, variables: list[Any], sometimes: bool
    ) -> UpdateSite:
        call = self._training.call()
        if call is not None:
            call.record.has_update(sometimes=sometimes)
        return UpdateSite(watched, variables, step, call)

    def _apply_together(
        self, replica: Any, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, update: Function
    ) -> Any:
        """Handle the update of one of several replicas, whose gradients are summed over them."""
        if step.replica_round is None:
            self._capture.say_once("warning: eager steps of several replicas are not captured, only a tf.function's")
            return update()
        if self._conditions.gradient_jump is not None:
            self._capture.say_once("warning: jumps of gradients are not looked for where there are several replicas")
        step.replica_round.site = self._site(step, watched, [variable for _, variable in pairs], sometimes=False)
        gradients = [gradient for gradient, _ in pairs]
        step.replica_round.take(replica, gradients, self._conditions, _may_overflow(watched))
        step.applied = True
        return update()

    # In eager code

    def _apply_eagerly(self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, update: Function) -> Any:
        if step.finite is False and step.applied:  # it was captured at another optimizer's update
            watched.skipped += 1
            return None
        gradients = [gradient for gradient, _ in pairs]
        test = graphs.UpdateTest(step.values, gradients, self._conditions, watched.memory, _may_overflow(watched))
        finite = self._capture.attempt(lambda: bool(test.is_good()))
        private_api.build(watched.optimizer(), [variable for _, variable in pairs])
        for other in step.optimizers:  # variables of earlier optimizers are saved from now on
            other.shares = other.shares or other is not watched
        step.optimizers.append(watched)
        watched.changed.update({key: variable for key, (variable, _) in step.variables.saved.items()})
        step.variables.count = len(step.variables.saved)
        step.applied = True
        if finite is False:
            step.finite = False
            self._reject_eagerly(step, watched, pairs)
            return None
        is_tested = finite is not None and watched.is_backed_up
        if watched.shares or is_tested:
            self._capture.attempt(step.variables.save_updated, watched.updated)
        step.is_updating = True
        try:
            result = update()
        finally:
            step.is_updating = False
        after = [read(variable) for _, variable in pairs] if is_tested else []
        if is_tested and self._capture.attempt(lambda: bool(graphs.are_finite(after))) is False:
            step.finite = False
            self._reject_eagerly(step, watched, pairs, after)
            return None
        self._capture.attempt(self._write_variables, step, test.remember)
        if self.rollback.is_on and self._training.thread_state.call is None:
            self._capture.attempt(self.rollback.keep_or_roll_back, False)
        for listener in self.applied_listeners:
            listener(watched.optimizer())
        return result

    def _write_variables(self, step: TensorFlowStep, pairs: Callable[[], Pairs]) -> None:
        """Write variables outside of the step's own writes: reprokit's, or saved values."""
        step.is_updating = True
        try:
            graphs.restore_values([(variable, value) for variable, value in pairs()])
        finally:
            step.is_updating = False

    def _reject_eagerly(
        self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, after: Sequence[Any] = ()
    ) -> None:
        values = StepValues(
            step.values.batches or [(LOADER, value) for value in self._training.thread_state.fetched.values]
        )
        values.losses, values.drawn = [] if step.values.loss is None else [step.values.loss], step.values.drawn
        values.activations = [(name, bool(finite)) for name, finite in step.values.activations]
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        rejected = RejectedStep(watched.optimizer(), variables, gradients, values)
        rejected.after = list(after)
        rejected.state.saved = {key: value for key, (_, value) in step.variables.before.items()}
        rejected.state.changed = [variable for variable, _ in step.variables.before.values()]
        if not values.batches and self._training.thread_state.call is None:
            values.batches = local_batch(sys._getframe(1))
            rejected.facts = rejected.facts.with_(loops=loop_counters(sys._getframe(1)))
        self.rejections.set_norm_mean(rejected, watched)
        pending = self.rejections.handle(rejected, watched, self._training.call(), sys._getframe(1))
        self._write_variables(step, lambda: [*step.variables.saved.values(), *step.variables.updated.values()])
        if pending is not None:
            raise pending
        if self.rollback.is_on and self._training.thread_state.call is None:
            self._capture.attempt(self.rollback.keep_or_roll_back, True)


def _may_overflow(watched: WatchedOptimizer) -> Any:
    """Return a tensor: whether gradients may overflow, as a scaled loss's may; None if they never may."""
    scale = loss_scale(watched.optimizer())
    return None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
