"""Follows PyTorch steps of one kind at little cost: what a step changes is written down only where it is needed.

Such a step takes one batch of a loader, calls one model, computes one loss, and updates one optimizer. At its events
only what cannot be read later is kept. Whoever looks at the thread's step (`ThreadSteps.step`) makes it written down
first; so does each event that is not the expected one, whose usual handler then goes on.
"""

from __future__ import annotations

import sys

from ..core.signal_errors import pass_on
from .settings import ROLLBACK
from .torch_steps import BACKWARD, BATCH, CALL, DONE, FOLLOWED, LOSS, UPDATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events import steps as events
    from .torch_checks import CaptureContext
    from .torch_steps import TrainingStep, UsualSteps
    from .torch_updates import UpdateChecks


class UsualStepListener:
    """Handles the events of a step; passes those that are not the expected ones to the usual handlers."""

    def __init__(self, training: CaptureContext, updates: UpdateChecks) -> None:
        self._training, self._updates = training, updates
        self._watched, self._records = training.watched, training.watched.records
        self._is_grad_enabled, self._are_finite = training.torch.is_grad_enabled, training.tests.at_once
        settings = training.capture.settings
        conditions = settings.conditions
        self._is_possible = settings.take is None and settings.redo is None and conditions.gradient_jump is None
        self._limit = sys.float_info.max if conditions.loss_above is None else conditions.loss_above
        self._rollback_every = settings.rollback_every if settings.action == ROLLBACK else sys.maxsize

    def batch_fetched(self, event: events.BatchFetched) -> None:
        """Record the batch."""
        usual = self._training.threads.usual
        if usual.expected != BATCH or event.began is not usual.began or not self._is_grad_enabled():
            self._updates.starts.batch_fetched(event)
            usual.began = event.began
            return
        step = usual.step
        record = step.batches.add("loader", event.batch, usual.epoch)
        assert record is not None  # the first of its step
        record.random, record.indices = step.start.handover_random.keep(), event.indices
        usual.expected = CALL

    def forward_began(self, event: events.ForwardBegan) -> None:
        """Keep the random states, and what the model is called with."""
        usual = self._training.threads.usual
        if usual.expected == CALL and not event.is_compiled and self._is_grad_enabled():
            usual.random = usual.step.start.handover_random.current()
            usual.call, usual.training_mode = event, bool(event.module.training)
            usual.expected = LOSS
        elif usual.expected != LOSS or event.is_compiled:  # calls of others, before the loss, begin nothing
            self._updates.forward_began(event)

    def backward_began(self, event: events.BackwardBegan) -> None:
        """Test the loss."""
        usual, number = self._training.threads.usual, event.number
        if usual.expected == LOSS and number is not None and not self._training.ranks.groups(self._training.torch):
            value, shape = number[1], getattr(event.tensors, "shape", None)
            if value - value == 0 and value <= self._limit and shape is not None:
                usual.number, usual.loss, usual.shape = number, value, shape
                usual.expected = BACKWARD
                return
        self._updates.losses.backward_began(event)

    def backward_ended(self, event: events.BackwardEnded) -> None:
        """Await the update."""
        usual = self._training.threads.usual
        if usual.expected == BACKWARD and not event.has_failed:
            usual.expected = UPDATE
        else:
            self._updates.losses.backward_ended(event)

    # Updates

    def update_due(self, event: events.UpdateDue) -> str | None:
        """Test the gradients, and keep the state before the update if that is due."""
        usual = self._training.threads.usual
        if usual.expected == UPDATE and event.closure is None and not event.is_nested and len(self._records) == 1:
            record, optimizer, is_finite = usual.record, event.target, None
            backup = record.backup
            if record.reference() is optimizer and record.thread is usual.step.thread:
                try:
                    is_finite = self._are_finite(record.gradients())
                except Exception as error:  # the usual handler will see it too
                    pass_on(error)
            if is_finite and backup is not None and getattr(optimizer, "found_inf", None) is None:
                state = usual.state
                is_passed = record.steps in backup.without and -backup.limit <= usual.loss <= backup.limit
                state.is_tested = not is_passed and backup.keep(record.steps, usual.loss)
                event.state = state
                usual.expected = DONE
                return None
        return self._updates.update_due(event)

    def update_done(self, event: events.UpdateDone) -> None:
        """Test the parameters if that is due, and count the step."""
        usual, due = self._training.threads.usual, event.due
        if (
            usual.expected != DONE
            or due is None
            or due.state is not usual.state
            or (usual.state.is_tested and usual.record.is_ruined())
        ):
            self._end_followed(event, usual)
            return
        usual.record.steps += 1
        usual.count += 1
        step = usual.step
        step.losses.recent.append(usual.loss)
        step.batches.end(usual.record)
        usual.call = None
        usual.expected = BATCH
        if usual.count >= usual.room:
            usual.write_down()

    def _end_followed(self, event: events.UpdateDone, usual: UsualSteps) -> None:
        """Handle the end of a step that was followed; expect others like it, if it is of the one kind."""
        step = self._training.threads.step
        is_usual = self._is_possible and not usual.patience and self._is_usual(step, event.due)
        usual.patience -= usual.patience > 0
        self._updates.update_done(event)
        if is_usual and not step.findings.skipped:
            assert event.due is not None
            usual.epoch, usual.state, usual.record = step.start.epoch, event.due.state, event.due.state.record
            usual.room = self._rollback_every - (self._watched.steps - step.rollback_step)
            usual.expected = BATCH if usual.room > 0 else FOLLOWED

    def _is_usual(self, step: TrainingStep, due: events.UpdateDue | None) -> bool:
        """Return whether a step, all of which is written down, is of the one kind."""
        batches, start, update = step.batches, step.start, step.update
        return (
            due is not None
            and due.state is not None
            and due.closure is None
            and not (due.is_nested or update.in_closure or update.is_compiled or update.phase)
            and len(self._records) == 1
            and not self._watched.scalers
            and due.state.record.backup is not None
            and step.is_begun
            and step.buffers.are_none
            and step.backward_count == start.origin[0] + 1
            and type(step.losses.current) is tuple
            and batches.are_trusted
            and batches.are_loaded
            and not batches.is_ahead
            and [batch.source for batch in batches.current] == [start.epoch]
            and [type(module) for module, _ in start.root_calls] != [str]
            and len(start.root_calls) == 1
        )
