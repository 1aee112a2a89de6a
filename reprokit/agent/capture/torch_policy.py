"""The policy for a bad PyTorch step: save its start, then stop the training, skip the step, or roll back."""

from __future__ import annotations

import sys

from ..pytorch import private_api
from ..pytorch.tensor_names import named_tensors, parts_of
from .header import PARAMETER, Trigger, in_words
from .settings import ROLLBACK, STOP
from .torch_copies import StateCopy
from .torch_snapshot import SnapshotBuilder, left_out_of
from .variables import user_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .torch_checks import CaptureContext, StepChecks
    from .torch_steps import OptimizerSteps, TrainingStep


class CapturePolicy:
    """Decides whether updates are applied, and acts on those that are not."""

    def __init__(self, training: CaptureContext, checks: StepChecks) -> None:
        self._training, self._checks = training, checks
        self._snapshot_builder = SnapshotBuilder(training.torch, training.tests, training.watched)
        self._capture = training.capture
        self._action = training.capture.settings.action

    # Before an update, and after it

    def refuses_update(self, step: TrainingStep, record: OptimizerSteps, optimizer: Any) -> bool:
        """Return whether the gradients must not be applied; if the training is to stop, it stops here."""
        training = self._training
        if id(record) in step.findings.skipped:
            return True
        if private_api.uses_cuda(training.torch) and training.is_recorded():
            return False
        records, watched = [record], training.watched
        if len(watched.records) > 1:
            records += watched.sharing_backward(record, step.backward_count)
        is_scaled = getattr(optimizer, "found_inf", None) is not None  # it skips overflows itself, on the device
        triggers = step.findings.triggers + self._checks.update_triggers(step, records, is_scaled)
        return bool(triggers) and self.alarm(step, records, triggers)

    def undo_if_ruined(self, step: TrainingStep, record: OptimizerSteps) -> bool:
        """Undo an update by finite gradients that made parameters non-finite; return whether there was one."""
        training = self._training
        if training.is_recorded() or record.backup is None or not record.is_ruined():
            return False
        triggers = training.triggers(PARAMETER, [record])
        record.backup.restore()
        return self.alarm(step, [record], triggers, has_changed=True)

    def note_applied(self, step: TrainingStep, record: OptimizerSteps) -> None:
        """Count an applied step, and end it."""
        training, epoch = self._training, step.start.epoch
        record.stepped(step.backward_count)
        if training.take is not None:
            training.note_step()
        watched = training.watched
        watched.steps += 1
        if len(watched.records) > 1:
            step.start.note_update()
        if epoch is not None:
            epoch.steps += 1
        step.end(record)

    def note_skipped(self, step: TrainingStep, record: OptimizerSteps) -> None:
        """Count a skipped step, and end it; other optimizers have yet to skip the same gradients."""
        remaining = step.findings.skipped - {id(record)}
        record.stepped(step.backward_count)
        self._training.note_step()
        self._training.watched.steps += 1
        self.restore_buffers(step)
        step.end(record)
        step.findings.skipped = remaining

    # The alarm

    def alarm(
        self, step: TrainingStep, records: list[OptimizerSteps], triggers: list[Trigger], has_changed: bool = False
    ) -> bool:
        """Save a snapshot of the step's start, and mark its gradients as not to be applied; return whether they are.

        A replay that is asked for one step's snapshot goes on as it was, unless the state was put back for it.
        """
        attempt, ranks, training = self._capture.attempt, self._training.ranks, self._training
        number = records[0].steps
        ruined = [other for other in records if triggers[0].kind != PARAMETER and other.is_ruined()]
        if ruined:
            number, triggers = self._before_ruin(step, ruined, triggers)
        phase = step.update.phase
        if phase is not None and phase.copy is not None:
            attempt(phase.copy.restore)
            phase.copy, has_changed = None, True
        triggers = attempt(ranks.without_marks, triggers, training.parameters) or triggers
        began_here = attempt(ranks.began_here, triggers)
        if triggers[0].kind != PARAMETER:  # parameters may have been ruined before the oldest saved state
            parameter_triggers = training.triggers(PARAMETER, records)
            triggers = [*[other.with_(was_before=True) for other in parameter_triggers], *triggers]
        where, optimizers = tuple(user_places(sys._getframe(1))), tuple(training.watched.names(records))
        first = triggers[0].with_(began_here=began_here, where=where, optimizers=optimizers)
        path = attempt(self._save, step, number, [first, *triggers[1:]])
        step.findings.triggers = []
        if training.take is not None:
            training.note_taken(first)
            if not has_changed:
                return False
        step.findings.skipped = set(map(id, records))
        if self._action == STOP:
            attempt(ranks.wait)
        self._capture.captured(number, in_words(first), path)
        if step.rollback_state is not None:
            attempt(step.rollback_state.restore)
        return True

    def _before_ruin(
        self, step: TrainingStep, records: list[OptimizerSteps], triggers: list[Trigger]
    ) -> tuple[int, list[Trigger]]:
        """Restore the last state whose parameters were finite; its batch is gone."""
        parameter_triggers = self._training.triggers(PARAMETER, records)
        steps = [record.backup.restore() for record in records if record.backup is not None]
        parameter_triggers[0] = parameter_triggers[0].with_(updates=records[0].steps - steps[0])
        step.restart()
        return steps[0], [*parameter_triggers, *triggers]

    def _save(self, step: TrainingStep, number: int, triggers: list[Trigger]) -> str | None:
        training, torch = self._training, self._training.torch
        with torch.no_grad(), private_api.without_overrides(torch):
            contents = self._snapshot_builder.contents(step, training.models(), training.names(), number, triggers)
            header, parts = training.ranks.complete(*contents)
        for listener in training.header_listeners:
            listener(header)
        for note in left_out_of(header.batches):
            self._capture.say_once(note)
        return self._capture.save(header.line(), parts)

    # Going back

    def restore_buffers(self, step: TrainingStep) -> None:
        """Restore the buffers that a skipped step's forward pass changed, unless training rolls back anyway."""
        if step.buffers.is_kept and self._action != ROLLBACK:
            self._capture.attempt(step.buffers.restore)

    def keep_rollback_state(self, step: TrainingStep) -> None:
        """Save the state to roll back to every so many steps, if training is to be rolled back."""
        if self._action == ROLLBACK:
            self._capture.attempt(self._keep_rollback_state, step)

    def _keep_rollback_state(self, step: TrainingStep) -> None:
        training, watched = self._training, self._training.watched
        if (
            step.rollback_state is not None
            and watched.steps - step.rollback_step < self._capture.settings.rollback_every
        ):
            return
        tensors = {id(t): t for model in training.models() for _, t in named_tensors(parts_of(model))}
        optimizers = [record.reference() for record in watched.alive()]
        others = [*watched.scalers, *watched.schedules]
        step.rollback_state, step.rollback_step = (
            StateCopy(training.torch, optimizers, tensors.values(), others),
            watched.steps,
        )
