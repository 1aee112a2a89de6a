"""Raises the alarm over a step of PyTorch: saves the state of its start, and stops, leaves it out or rolls back."""

from __future__ import annotations

import sys

from ..pytorch import private_api
from ..pytorch.state import named_tensors, parts_of
from .settings import ROLLBACK, STOP
from .torch_snapshot import left_out_of
from .torch_updates import StateCopy
from .trigger import PARAMETER, in_words
from .variables import places_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .torch_held import TrainingStep
    from .torch_training import OptimizerSteps, Training
    from .trigger import Trigger


class Alarms:
    """What is done about a step that is not as it should be."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._capture = training.capture
        self._action = training.settings.action
        self._copy: StateCopy | None = None  # the state to roll back to
        self._copied_at = 0  # steps that were made before

    @property
    def rolls_back(self) -> bool:
        """Whether there is to be a state to go back to."""
        return self._action == ROLLBACK

    def due(self, held: TrainingStep) -> list[OptimizerSteps]:
        """The optimizers whose turn comes after this backward pass: one, and those that step together with it."""
        reached, records = held.findings.reached, self.with_gradients()
        records = [one for one in records if any(id(p) in reached for p in one.parameters())] or records
        if not records:
            return []
        first = min(records, key=lambda record: record.turn(held.round))
        following = self._training.watched.following(first, held.round)
        return [first, *[one for one in records if one in following]]

    def with_gradients(self) -> list[OptimizerSteps]:
        """The optimizers that have any."""
        records = self._training.watched.alive()
        return [record for record in records if record.gradients()] or records

    def alarm(self, held: TrainingStep, records: list[OptimizerSteps], triggers: list[Trigger]) -> None:
        """Save the state of the step's start, and see that its gradients are not applied."""
        attempt, ranks, training = self._capture.attempt, self._training.ranks, self._training
        step = records[0].steps
        ruined = [one for one in records if triggers[0].kind != PARAMETER and training.updates.is_ruined(one)]
        if ruined:
            step, triggers = self._before_ruin(held, ruined, triggers)
        phase = held.update.phase
        if phase is not None and phase.copy is not None:
            attempt(phase.copy.put_back)
            phase.copy = None
        triggers = attempt(ranks.heard, triggers, training.parameters) or triggers
        began_here = attempt(ranks.began_here, triggers)
        if triggers[0].kind != PARAMETER:  # ruined by an update before which no state is held
            known = training.snapshooter.parameter_triggers(training.models(), records)
            triggers = [*[one.with_(was_before=True) for one in known], *triggers]
        where, optimizers = tuple(places_of(sys._getframe(1))), tuple(training.watched.names(records))
        first = triggers[0].with_(began_here=began_here, where=where, optimizers=optimizers)
        path = attempt(self._save, held, step, [first, *triggers[1:]])
        held.findings.triggers = []
        held.findings.skipped = set(map(id, records))
        if self._action == STOP:
            attempt(ranks.wait)
        self._capture.captured(step, in_words(first), path)
        if self._copy is not None:
            attempt(self._copy.put_back)

    def _before_ruin(
        self, held: TrainingStep, records: list[OptimizerSteps], triggers: list[Trigger]
    ) -> tuple[int, list[Trigger]]:
        """Go back to the last state whose parameters were finite; its batch is not there any more."""
        training = self._training
        found = training.snapshooter.parameter_triggers(training.models(), records)
        steps = [training.updates.put_back(record) for record in records]
        found[0] = found[0].with_(updates=records[0].steps - steps[0])
        held.batches.restart()
        held.batches.are_loaded = False
        held.buffers.end()
        held.start.forget()
        held.start.updated = None
        return steps[0], [*found, *triggers]

    def _save(self, held: TrainingStep, step: int, triggers: list[Trigger]) -> str | None:
        training, torch = self._training, self._training.torch
        with torch.no_grad(), private_api.without_overrides(torch):
            contents = training.snapshooter.contents(held, training.models(), step, triggers)
            header, parts = training.ranks.complete(*contents)
        for note in left_out_of(header.batches):
            self._capture.say_once(note)
        return self._capture.save(header.line(), parts)

    def put_buffers_back(self, held: TrainingStep) -> None:
        """What the forward pass of a step that is left out has moved, unless an older state takes its place."""
        if held.buffers.is_kept and not self.rolls_back:
            self._capture.attempt(held.buffers.put_back)

    def keep_copy(self) -> None:
        """Hold the state to go back to, now and then, where training is to be rolled back."""
        training, watched = self._training, self._training.watched
        if self._copy is not None and watched.steps - self._copied_at < training.settings.rollback_every:
            return
        tensors = {id(t): t for model in training.models() for _, t in named_tensors(parts_of(model))}
        optimizers = [record.reference() for record in watched.alive()]
        others = [*watched.scalers, *watched.schedules]
        self._copy, self._copied_at = StateCopy(training.torch, optimizers, tensors.values(), others), watched.steps
