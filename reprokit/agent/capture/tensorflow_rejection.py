"""Handles a step of TensorFlow that must not be applied: completes what is known of it, and has it saved."""

from __future__ import annotations

import sys

from .settings import NEEDS_TENSORFLOW_2, ROLLBACK
from .tensorflow_calls import OutermostCall, UpdateSite, WatchedOptimizer, iterations, one_of, unread
from .tensorflow_graph import batch_in_graph, call_host, in_loop, numbers_given_to
from .tensorflow_replicas import OF_THE_FIRST, ReplicaRound, wait_for_workers, worker
from .tensorflow_snapshot import RejectedStep, in_fit
from .tensorflow_state import FUNCTION, SCRIPT, as_array, eager_state, plain, put_variable, read
from .tensorflow_steps import StepValues
from .trigger import in_words
from .variables import places_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from . import CaptureSession
    from .random_states import RandomStates
    from .tensorflow_calls import TrainingState
    from .tensorflow_steps import TensorFlowStep

    class StepHandler(Protocol):
        """What is done with the steps of a training: they are saved (SnapshotHandler), or executed again."""

        def unavailable(self, version: str) -> None:
            """Say that steps of this version of TensorFlow cannot be seen."""

        def outermost(self, call: OutermostCall) -> Any:
            """Make an outermost call."""

        def rejected(self, step: RejectedStep) -> None:
            """Take a step that must not be applied; raises SystemExit where the training is to end."""

        def begins(self, step: TensorFlowStep) -> None:
            """Note that a step in eager code begins."""

        def applied(self, optimizer: Any) -> None:
            """Note that a step in eager code was applied."""

        def builds(self, graph: Any) -> None:
            """Note that an update is built into a graph."""

        def drew(self, kind: str, drawn: Any) -> Any:
            """Return what an operation with a random state of its own is to give, which drew this."""

        def fetched(self, value: Any) -> Any:
            """Return what the script is to get, where a data set gave this to eager code."""


class SnapshotHandler:
    """Lets steps happen, and saves those that must not be applied."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture

    def unavailable(self, version: str) -> None:
        """Say that steps of this TensorFlow are not captured; the training goes on."""
        self._capture.unavailable("tensorflow", version, NEEDS_TENSORFLOW_2)

    def outermost(self, call: OutermostCall) -> Any:
        """Make the call as the script does."""
        return call.run()

    def rejected(self, step: RejectedStep) -> None:
        """Save a step that must not be applied, and say so; raises SystemExit where the training is to end."""
        conditions = self._capture.settings.conditions
        triggers = step.triggers(conditions)
        saved = self._capture.attempt(step.contents, conditions)
        path = None if saved is None else self._capture.save(saved[0].line(), saved[1])
        self._capture.captured(step.place.step, in_words(triggers[0]) if triggers else "it is not finite", path)

    def begins(self, step: TensorFlowStep) -> None:
        """Leave a step as it is."""

    def applied(self, optimizer: Any) -> None:
        """Leave an optimizer as it is."""

    def builds(self, graph: Any) -> None:
        """Leave a graph as it is."""

    def drew(self, _kind: str, drawn: Any) -> Any:
        """Give what was drawn."""
        return drawn

    def fetched(self, value: Any) -> Any:
        """Give what was fetched."""
        return value


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


class Rejections:
    """Completes what is known of steps that must not be applied, and hands them on."""

    def __init__(self, capture: CaptureSession, training: TrainingState, handler: StepHandler) -> None:
        self.capture = capture
        self.random: RandomStates | None = None  # of Python and NumPy, once TensorFlow is there
        self._conditions = capture.settings.conditions
        self.training = training
        self._handler = handler

    def keep_random(self) -> None:
        """Hold the random states as they are now."""
        if self.random is not None:
            self.random.keep()

    def handle(
        self, found: RejectedStep, known: WatchedOptimizer, call: OutermostCall | None, frame: Any
    ) -> BaseException | None:
        """Complete what was found and have it captured; what is to end the training, if that is to happen."""
        self.capture.attempt(self._complete, found, known, call, frame)
        try:
            self._handler.rejected(found)
        except SystemExit as error:
            return error
        except Exception as error:
            self.capture.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
        finally:
            known.skipped += 1
        if call is not None:
            call.rolls_back = True
        return None

    def _complete(self, found: RejectedStep, known: WatchedOptimizer, call: OutermostCall | None, frame: Any) -> None:
        models, place = found.models, found.place
        updates = iterations(found.optimizer, models.held)
        place.step = max(0, (updates or 0) - (known.first or 0)) + known.skipped
        place.losses = known.last_losses()
        found.random.kept, found.random.eager = ({} if self.random is None else self.random.kept()), eager_state()
        models.optimizers = self.training.optimizers()
        if call is None or call.model is None:
            models.others = [
                plain(variable) for entry in self.training.order if entry is not known for variable in entry.alive
            ]
        if call is not None:
            models.model = call.model
            if call.origin == FUNCTION:
                self._add_window(found, call)
        place.where = places_of(frame)
        place.epoch, place.steps_in_epoch = in_fit(frame)
        if not found.values.batches:
            found.notes.append("the batch is not known: nothing was fetched from a data set, and no function called")

    def _add_window(self, found: RejectedStep, call: OutermostCall) -> None:
        """The batches whose gradients were added up, and the state before the first of them."""
        window = call.window
        earlier = [] if window is None else [one for one in window.calls if one.arguments or one.keywords]
        models, values = found.models, found.values
        if not values.batches and (call.arguments or call.keywords or not earlier):
            values.batches = [(SCRIPT, one_of(call.arguments, call.keywords))]
        values.batches = [*[(SCRIPT, one_of(one.arguments, one.keywords)) for one in earlier], *values.batches]
        if window is not None and window.calls:
            models.held = {**models.held, **window.before}
            models.moved = [*models.moved, *[one for call in window.calls for one in call.traced.written.values()]]
            found.random.unreadable = [*found.random.unreadable, *unread(window.calls)]

    # In graphs

    def for_host(
        self, site: UpdateSite, step: TensorFlowStep, gradients: list[Any], before: dict[int, tuple[Any, Any]]
    ) -> tuple[Callable[[dict[str, Any]], None], dict[str, Any]]:
        """In a graph: a function on the host for a step that must not be applied, and all that a snapshot needs."""
        held = {str(key): value for key, (_, value) in before.items()}
        site.moved = before
        batches = step.values.batches or batch_in_graph()
        seen = {
            "gradients": gradients,
            "loss": step.values.loss,
            "batches": [value for _, value in batches],
            "held": held,
            "activations": [finite for _, finite in step.values.activations],
        }
        seen["drawn"] = site.drawn()
        seen["given"] = numbers_given_to(step.graph)
        origins = [origin for origin, _ in batches]
        loops = in_loop()

        def on_host(seen: dict[str, Any]) -> None:
            found = self.of_site(site, seen, list(zip(origins, seen["batches"])))
            found.models.held = {int(key): value for key, value in seen["held"].items()}
            self.end_behind(site, found, loops=loops, call=self.training.call_with(seen["given"]))

        return on_host, seen

    def call_host_together(self, strategy: Any, together: ReplicaRound) -> None:
        """The same behind the run of several replicas, with the batches of those of this process."""
        step, site, number, loops = together.step, together.site, worker(strategy), in_loop()
        if step is None:
            return
        origins = [origin for origin, _ in step.values.batches]
        seen = {
            "gradients": together.gradients,
            "loss": together.shares[0].loss,
            "where": together.shares[0].where,
            "batches": [value for _, value in step.values.batches],
            "held": {str(key): value for key, (_, value) in step.variables.held.items()},
            "activations": [finite for _, finite in step.values.activations],
            "drawn": site.drawn(),
        }

        def on_host(seen: dict[str, Any]) -> None:
            found = self.of_site(site, seen, list(zip(origins, seen["batches"])))
            found.models.held = {int(key): value for key, value in seen["held"].items()}
            found.norm_mean, found.replicas.worker = None, number
            found.notes.append(OF_THE_FIRST)
            found.replicas.only_in = int(seen["where"])
            found.replicas.numbers = [share.number for share in together.shares]
            self.end_behind(site, found, loops=loops)

        call_host(on_host, seen)

    def of_site(self, site: UpdateSite, seen: dict[str, Any], batches: list[tuple[str, Any]]) -> RejectedStep:
        values = StepValues(batches)
        values.losses = [] if seen["loss"] is None else [seen["loss"]]
        values.activations = [(name, bool(one)) for name, one in zip(site.activations, seen["activations"])]
        values.drawn = list(zip(site.draws, seen.get("drawn", ())))
        found = RejectedStep(site.known.optimizer(), site.variables, seen["gradients"], values)
        found.random.unreadable = self.capture.attempt(lambda: site.unreadable) or []
        found.models.moved = variables_of(site.moved)
        if self._conditions.gradient_jump is not None:
            found.norm_mean = as_array(site.known.memory.norms).tolist()[0]
        return found

    def end_behind(
        self, site: UpdateSite, found: RejectedStep, *, loops: bool, call: OutermostCall | None = None
    ) -> None:
        """Handle what was found; the training ends when its call has come back, or at once where a graph loops."""
        call = call or self.training.current()
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
        if found.replicas.worker is not None:
            wait_for_workers()
        if call is None:
            raise pending
        call.pending = pending
        if loops:
            raise RuntimeError("the step was captured, and no further one is taken")


def variables_of(held: dict[int, tuple[Any, Any]]) -> list[Any]:
    """Return the variables of those that were held with their values."""
    return [variable for variable, _ in held.values()]
