"""Lets the updates of TensorFlow's optimizers happen where all is finite, in eager code and in graphs.

What is known of a step that must not be applied is completed here, and handed on to be saved, or compared.
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
from .tensorflow_steps import OutermostCall, StepValues, WatchedOptimizer, iterations
from .variables import loop_counters, user_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..events import GradientsDue
    from . import CaptureSession
    from .random_states import RandomStates
    from .tensorflow_capture import XlaCalls
    from .tensorflow_steps import TensorFlowStep, TrainingState

    Function = Callable[..., Any]
    Pairs = list[tuple[Any, Any]]  # of gradients, or values, and variables


class UpdateSite:
    """A place where a graph applies gradients."""

    def __init__(
        self, known: WatchedOptimizer, variables: list[Any], step: TensorFlowStep, call: OutermostCall | None
    ) -> None:
        self.known = known
        self.step = step
        self.variables = variables
        # TensorFlow keeps graphs as long as the process, and they keep this: the model may go before.
        self._model = None if call is None or call.model is None else weakref.ref(call.model)
        self.traced = None if call is None else call.traced  # the function that the graph was built in
        self.activations = [name for name, _ in step.values.activations]
        self.draws: list[str] = []  # types of operations with a random state of their own, whose numbers are handed out
        self.moved: dict[int, tuple[Any, Any]] = {}  # what else the compiled step writes to

    @property
    def model(self) -> Any:
        """The model whose fit it is a part of, while there is one."""
        return None if self._model is None else self._model()

    def drawn(self) -> list[Any]:
        """Return the numbers of operations with a random state of their own, to be handed out."""
        draws = graphs.drawing(self.step.graph)
        self.draws = [draw.type for draw in draws]
        return [draw.outputs[0] for draw in draws]

    @property
    def updated(self) -> list[Any]:
        """The variables that are tested behind the update."""
        return self.variables if self.known.is_held else []

    @property
    def unreadable(self) -> list[str]:
        """Operations with a random state of their own whose numbers nobody is handed."""
        graph = self.step.graph
        return [operation.name for operation in graphs.drawing(graph)[len(self.draws) :]] + graphs.hidden(graph)


class Rejections:
    """Completes what is known of steps that must not be applied, and hands them on."""

    def __init__(self, capture: CaptureSession, training: TrainingState) -> None:
        self.capture = capture
        self.training = training
        self.random: RandomStates | None = None  # of Python and NumPy, once TensorFlow is there
        self.reject: Callable[[RejectedStep], None] = self._save  # takes a step that must not be applied
        self._conditions = capture.settings.conditions
        training.begun.append(self._begins)

    def _begins(self, _step: TensorFlowStep) -> None:
        if self.training.here.call is None:
            self.keep_random()

    def keep_random(self) -> None:
        """Hold the random states as they are now."""
        if self.random is not None:
            self.random.keep()

    def _save(self, step: RejectedStep) -> None:
        """Save a step that must not be applied, and say so; raises SystemExit where the training is to end."""
        triggers = step.triggers(self._conditions)
        saved = self.capture.attempt(step.contents, self._conditions)
        path = None if saved is None else self.capture.save(saved[0].line(), saved[1])
        self.capture.captured(step.facts.step, in_words(triggers[0]) if triggers else "it is not finite", path)

    def handle(
        self, found: RejectedStep, known: WatchedOptimizer, call: OutermostCall | None, frame: Any
    ) -> BaseException | None:
        """Complete what was found and have it captured; what is to end the training, if that is to happen."""
        self.capture.attempt(self._complete, found, known, call, frame)
        try:
            self.reject(found)
        except SystemExit as error:
            return error
        except Exception as error:
            self.capture.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
            pass_on(error)
        finally:
            known.skipped += 1
        if call is not None:
            call.rolls_back = True
        return None

    def _complete(self, found: RejectedStep, known: WatchedOptimizer, call: OutermostCall | None, frame: Any) -> None:
        state, updates = found.state, iterations(found.optimizer, found.state.held)
        state.random = {**({} if self.random is None else self.random.kept()), "eager": eager_state()}
        state.optimizers = self.training.optimizers()
        state.model = None if call is None else call.model
        if state.model is None:
            others = [entry for entry in self.training.order if entry is not known]
            state.others = [plain(variable) for entry in others for variable in entry.alive]
            if call is not None:
                self._add_window(found, call)
        epoch, steps_in_epoch = in_fit(frame)
        found.facts = found.facts.with_(
            step=max(0, (updates or 0) - (known.first or 0)) + known.skipped,
            epoch=epoch,
            steps_in_epoch=steps_in_epoch,
            losses=tuple([loss.hex() for loss in known.last_losses()]),
            trigger=Trigger(where=tuple(user_places(frame))),
        )
        if not found.values.batches:
            found.notes.append("the batch is not known: nothing was fetched from a data set, and no function called")

    def _add_window(self, found: RejectedStep, call: OutermostCall) -> None:
        """The batches whose gradients were added up, and the state before the first of them."""
        window = call.window
        earlier = [] if window is None else [one for one in window.calls if one.arguments or one.keywords]
        state, values = found.state, found.values
        if not values.batches and (call.arguments or call.keywords or not earlier):
            values.batches = [(SCRIPT, call.value)]
        values.batches = [*[(SCRIPT, one.value) for one in earlier], *values.batches]
        if window is not None and window.calls:
            state.held = {**state.held, **window.before}
            state.moved = [*state.moved, *[one for call in window.calls for one in call.traced.written.values()]]
            state.unreadable = [*state.unreadable, *window.unread]

    # In graphs

    def for_host(
        self, site: UpdateSite, step: TensorFlowStep, gradients: list[Any], before: dict[int, tuple[Any, Any]]
    ) -> tuple[Callable[[dict[str, Any]], None], dict[str, Any]]:
        """In a graph: a function on the host for a step that must not be applied, and all that a snapshot needs."""
        site.moved = before
        batches = step.values.batches or graphs.batch_in_graph()
        seen = {
            **_seen(site, step, gradients, batches, before),
            "loss": step.values.loss,
            "given": graphs.numbers_given_to(step.graph),
        }
        origins = [origin for origin, _ in batches]
        loops = graphs.in_loop()

        def on_host(seen: dict[str, Any]) -> None:
            found = self.of_site(site, seen, origins)
            call = self.capture.attempt(self.training.call_with, seen["given"], site.traced)
            self.end_behind(site, found, loops=loops, call=call)

        return on_host, seen

    def call_host_together(self, strategy: Any, together: graphs.ReplicaRound) -> None:
        """The same behind the run of several replicas, with the batches of those of this process."""
        step, site, number, loops = together.step, together.site, graphs.worker(strategy), graphs.in_loop()
        if step is None or site is None:
            return
        batches, share = step.values.batches, together.shares[0]
        origins = [origin for origin, _ in batches]
        seen = {
            **_seen(site, step, together.gradients, batches, step.variables.held),
            "loss": share.loss,
            "where": share.where,
        }

        def on_host(seen: dict[str, Any]) -> None:
            found = self.of_site(site, seen, origins)
            found.norm_mean = None
            if number is not None:
                found.facts = found.facts.with_(rank=number[0], world=number[1])
            found.notes.append(graphs.OF_THE_FIRST)
            found.only_in = int(seen["where"])
            found.values.replicas = [share.number for share in together.shares]
            self.end_behind(site, found, loops=loops)

        graphs.call_host(on_host, seen)

    def of_site(self, site: UpdateSite, seen: dict[str, Any], origins: list[str]) -> RejectedStep:
        """Return what was seen of a step in a graph, in values."""
        values = StepValues(zip(origins, seen["batches"]))
        values.losses = [] if seen["loss"] is None else [seen["loss"]]
        values.activations = [(name, bool(one)) for name, one in zip(site.activations, seen["activations"])]
        values.drawn = list(zip(site.draws, seen.get("drawn", ())))
        found = RejectedStep(site.known.optimizer(), site.variables, seen["gradients"], values)
        found.state.unreadable = self.capture.attempt(lambda: site.unreadable) or []
        found.state.held = dict(seen.get("held", ()))
        found.after = list(seen.get("after", ()))
        found.state.moved = [variable for variable, _ in site.moved.values()]
        self.judge_norm(found, site.known)
        return found

    def judge_norm(self, found: RejectedStep, known: WatchedOptimizer) -> None:
        """Say what norms of gradients were before, where jumps are looked for."""
        mean, count = as_array(known.memory.norms).tolist() if self._conditions.gradient_jump is not None else (0, 0)
        found.norm_mean = mean if count else None

    def end_behind(
        self, site: UpdateSite, found: RejectedStep, *, loops: bool, call: OutermostCall | None = None
    ) -> None:
        """Handle what was found; the training ends when its call has come back, or at once where a graph loops."""
        call = call or self.training.call()
        if call is not None and call.pending is not None:  # an earlier step of the same graph, which ends the training
            return
        if call is not None and not loops and call.captured is site.step:  # where another optimizer was to update
            site.known.skipped += 1
            return
        if call is not None:
            call.captured = site.step
        frame = None if call is None else sys._current_frames().get(call.thread)
        pending = self.handle(found, site.known, call, frame)
        if pending is None:
            return
        if found.facts.world is not None:
            graphs.wait_for_workers()
        if call is None:
            raise pending
        call.pending = pending
        if loops:
            raise RuntimeError("the step was captured, and no further one is taken")


def _seen(
    site: UpdateSite, step: TensorFlowStep, gradients: list[Any], batches: Any, held: dict[int, tuple[Any, Any]]
) -> dict[str, Any]:
    """Return what a snapshot needs of a step in a graph."""
    return {
        "gradients": gradients,
        "batches": [value for _, value in batches],
        "held": [(key, value) for key, (_, value) in held.items()],  # no dictionary, which nest sorts: by addresses
        "activations": [finite for _, finite in step.values.activations],
        "drawn": site.drawn(),
    }


class RollbackState:
    """A state to go back to, of what all optimizers update."""

    def __init__(self, capture: CaptureSession, training: TrainingState) -> None:
        self.is_on = capture.settings.action == ROLLBACK
        self._every = capture.settings.rollback_every
        self._training = training
        self._since = 0
        self._optimizers = 0
        self._good: list[tuple[Any, Any]] = []  # variables and values

    def forget(self) -> None:
        """Drop what a parent process kept, in a forked child."""
        self._good = []

    def keep_or_go_back(self, goes_back: bool) -> None:
        """Go back to the state that was kept last, or keep the present one where it is time to."""
        if len(self._training.order) != self._optimizers:  # of a further one nothing was kept
            self._optimizers, self._good = len(self._training.order), []
        if goes_back:
            for variable, value in self._good:
                put_variable(variable, value)
            return
        self._since += 1
        if not self._good or self._since >= self._every:
            self._since = 0
            self._good = [(variable, read(variable)) for variable in self._training.variables()]


class UpdateGuard:
    """The updates of all optimizers of a process."""

    def __init__(self, rejections: Rejections, xla: XlaCalls) -> None:
        self.rejections = rejections
        self.rollback = RollbackState(rejections.capture, rejections.training)
        self.applied: list[Callable[[Any], object]] = []  # called with the optimizer of each eager step that is applied
        self._capture = rejections.capture
        self._training = rejections.training
        self._settings = self._capture.settings
        self._conditions = self._settings.conditions
        self._xla = xla

    def gradients_due(self, due: GradientsDue) -> None:
        """Put in the place of an update one that is made where all is finite."""
        optimizer, pairs, update = due.optimizer, due.pairs, due.update
        due.update = lambda: self._apply(optimizer, pairs, update)  # type: ignore[arg-type]

    def _apply(self, optimizer: Any, pairs: Pairs, update: Function) -> Any:
        step = self._training.step() or self._training.begin_step()
        if self._xla.tracing is not None:
            self._xla.take(step, optimizer, pairs)
            return None
        known, one_of_several = self._training.know(optimizer, pairs), graphs.replica()
        if one_of_several is not None:
            return self._apply_together(one_of_several, step, known, pairs, update)
        if all(is_eager(gradient) for gradient, _ in pairs):
            return self._apply_eagerly(step, known, pairs, update)
        try:
            self._apply_in_graph(step, known, pairs, update)
        except Exception as error:
            self._capture.say_once(f"warning: steps are not captured: {type(error).__name__}: {error}")
            pass_on(error)
            return update()
        return None

    # In graphs

    def _apply_in_graph(self, step: TensorFlowStep, known: WatchedOptimizer, pairs: Pairs, update: Function) -> None:
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        private_api.build(known.optimizer(), variables)
        site = self._site(step, known, variables, sometimes=private_api.default_graph() is not step.graph)
        test = graphs.UpdateTest(step.values, gradients, self._conditions, known.memory, _may_overflow(known))
        step.variables.count = len(step.variables.held)
        if private_api.in_xla():
            self._xla.expect(site, step)
            graphs.flagged(step, test, update, known.memory)
        else:
            for metric in getattr(site.model, "metrics", ()):  # which are moved while the host looks at a step
                for variable in metric.variables:
                    self._capture.attempt(step.variables.hold, plain(variable))
            known.moved.update({key: variable for key, (variable, _) in step.variables.before.items()})
            updated = site.updated
            if updated:
                self._capture.attempt(step.variables.hold_updated, known.updated)
            stops, before = self._settings.action == STOP, step.variables.before
            moved = [*step.variables.held.values(), *step.variables.updated.values()]
            if stops:  # the call begins at the state that the snapshot holds
                moved = list(before.values())
            if not updated:  # for a further optimizer in the same step
                self._capture.attempt(step.variables.hold_updated, known.updated)
            on_host, seen = self.rejections.for_host(site, step, gradients, before)

            def host() -> None:
                graphs.call_host(on_host, {**seen, "after": graphs.now(updated)})

            graphs.conditional(step, test, update, host, moved, updated, stops=stops)
        step.applied = True

    def _site(self, step: TensorFlowStep, known: WatchedOptimizer, variables: list[Any], sometimes: bool) -> UpdateSite:
        call = self._training.call()
        if call is not None:
            call.traced.has_update(sometimes=sometimes)
        return UpdateSite(known, variables, step, call)

    def _apply_together(
        self, replica: Any, step: TensorFlowStep, known: WatchedOptimizer, pairs: Pairs, update: Function
    ) -> Any:
        """One of several replicas applies gradients that are summed over them."""
        if step.together is None:
            self._capture.say_once("warning: eager steps of several replicas are not captured, only a tf.function's")
            return update()
        if self._conditions.gradient_jump is not None:
            self._capture.say_once("warning: jumps of gradients are not looked for where there are several replicas")
        step.together.site = self._site(step, known, [variable for _, variable in pairs], sometimes=False)
        gradients = [gradient for gradient, _ in pairs]
        step.together.take(replica, gradients, self._conditions, _may_overflow(known))
        step.applied = True
        return update()

    # In eager code

    def _apply_eagerly(self, step: TensorFlowStep, known: WatchedOptimizer, pairs: Pairs, update: Function) -> Any:
        if step.finite is False and step.applied:  # it was captured where another optimizer was to update
            known.skipped += 1
            return None
        gradients = [gradient for gradient, _ in pairs]
        test = graphs.UpdateTest(step.values, gradients, self._conditions, known.memory, _may_overflow(known))
        finite = self._capture.attempt(lambda: bool(test.passes()))
        private_api.build(known.optimizer(), [variable for _, variable in pairs])
        for other in step.optimizers:  # what those before it update is held from now on
            other.shares = other.shares or other is not known
        step.optimizers.append(known)
        known.moved.update({key: variable for key, (variable, _) in step.variables.held.items()})
        step.variables.count = len(step.variables.held)
        step.applied = True
        if finite is False:
            step.finite = False
            self._found_eagerly(step, known, pairs)
            return None
        is_tested = finite is not None and known.is_held
        if known.shares or is_tested:
            self._capture.attempt(step.variables.hold_updated, known.updated)
        step.passes = True
        try:
            result = update()
        finally:
            step.passes = False
        after = [read(variable) for _, variable in pairs] if is_tested else []
        if is_tested and self._capture.attempt(lambda: bool(graphs.are_finite(after))) is False:
            step.finite = False
            self._found_eagerly(step, known, pairs, after)
            return None
        self._capture.attempt(self._put, step, test.remember)
        if self.rollback.is_on and self._training.here.call is None:
            self._capture.attempt(self.rollback.keep_or_go_back, False)
        for told in self.applied:
            told(known.optimizer())
        return result

    def _put(self, step: TensorFlowStep, pairs: Callable[[], Pairs]) -> None:
        """Write variables of ours, or as they were: no part of a step."""
        step.passes = True
        try:
            graphs.put_back([(variable, value) for variable, value in pairs()])
        finally:
            step.passes = False

    def _found_eagerly(
        self, step: TensorFlowStep, known: WatchedOptimizer, pairs: Pairs, after: Sequence[Any] = ()
    ) -> None:
        values = StepValues(step.values.batches or [(LOADER, value) for value in self._training.here.fetched.values])
        values.losses, values.drawn = [] if step.values.loss is None else [step.values.loss], step.values.drawn
        values.activations = [(name, bool(finite)) for name, finite in step.values.activations]
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        found = RejectedStep(known.optimizer(), variables, gradients, values)
        found.after = list(after)
        found.state.held = {key: value for key, (_, value) in step.variables.before.items()}
        found.state.moved = [variable for variable, _ in step.variables.before.values()]
        if not values.batches and self._training.here.call is None:
            values.batches = local_batch(sys._getframe(1))
            found.facts = found.facts.with_(loops=loop_counters(sys._getframe(1)))
        self.rejections.judge_norm(found, known)
        pending = self.rejections.handle(found, known, self._training.call(), sys._getframe(1))
        self._put(step, lambda: [*step.variables.held.values(), *step.variables.updated.values()])
        if pending is not None:
            raise pending
        if self.rollback.is_on and self._training.here.call is None:
            self._capture.attempt(self.rollback.keep_or_go_back, True)


def _may_overflow(known: WatchedOptimizer) -> Any:
    """In a graph: whether gradients may overflow, as those of a scaled loss; None where they never may."""
    scale = loss_scale(known.optimizer())
    return None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
