"""Steps of PyTorch's optimizers, also by closures, in parts and compiled: applied, or left out."""

from __future__ import annotations

from ..events import SKIP, NotApplied
from ..pytorch.decisions import own_step
from .torch_copies import StateCopy
from .torch_steps import Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import (
        ForwardBegan,
        ForwardEnded,
        OptimizerMade,
        PartDone,
        PartDue,
        UpdateDone,
        UpdateDue,
        UpdateEnded,
    )
    from .torch_losses import Losses
    from .torch_steps import StepStarts, TrainingStep
    from .torch_training import OptimizerSteps, Training


class UpdateState:
    """What an update that is asked for is known by until it is done."""

    def __init__(self, record: OptimizerSteps) -> None:
        self.record = record
        self.is_tested = False  # the parameters are to be, after it
        self.calls = 0  # of the closure, where there is one
        self.copy: StateCopy | None = None  # of what a closure's gradients may have moved
        self.has_moved = False  # what the copy is of


class Updates:
    """Tests gradients when an optimizer is about to apply them."""

    def __init__(self, training: Training, starts: StepStarts, losses: Losses) -> None:
        self._training = training
        self._watched = training.watched
        self._policy = training.policy
        self._starts = starts
        self._losses = losses

    def optimizer_made(self, event: OptimizerMade) -> None:
        """Watch the optimizers that are made from now on."""
        if self._watched.only is None:
            self.watch(event.target)

    def watch(self, optimizer: Any) -> OptimizerSteps:
        """Watch the steps of an optimizer."""
        known = self._watched.records.get(id(optimizer))
        if known is not None and known.reference() is optimizer:
            return known
        record, held = self._watched.add(optimizer), self._training.threads.held
        held.buffers.forget()
        if not held.is_begun:
            held.armed = True
        return record

    # Whole steps

    def update_due(self, event: UpdateDue) -> str | None:
        """Answer whether an update must not be made."""
        held, optimizer = self._training.threads.held, event.target
        record = self._watched.records.get(id(optimizer))
        if event.is_nested or (record is None and self._watched.only is not None):
            return None
        if record is None or record.reference() is not optimizer:
            record = self.watch(optimizer)  # a copy, or one that was unpickled
        if record.thread != held.thread:
            record.thread = held.thread
            held.buffers.forget()
        state = event.state = UpdateState(record)
        if event.closure is not None:
            return self._due_with_closure(held, state, event)
        if self._policy.refuses(held, record, optimizer):
            self._policy.skipped(held, record)
            return SKIP
        state.is_tested = self._training.backs_up(held, record)
        return None

    def update_done(self, event: UpdateDone) -> None:
        """An update was made; one that ruined the parameters is taken back."""
        state: UpdateState | None = None if event.due is None else event.due.state
        if state is None:
            return
        record = state.record
        if state.calls:
            record.repeats = state.calls > 1 or (record.repeats and record.steps > 0)
        self._ended(self._training.threads.held, record, state.is_tested)

    def _ended(self, held: TrainingStep, record: OptimizerSteps, is_tested: bool) -> None:
        if is_tested and self._policy.takes_back(held, record):
            self._policy.skipped(held, record)
        else:
            self._policy.applied(held, record)

    def update_ended(self, event: UpdateEnded) -> None:
        """An update is over, however it ended."""
        if event.due.state is not None:
            self._training.threads.held.update.in_closure = False

    # Closures

    def _due_with_closure(self, held: TrainingStep, state: UpdateState, event: UpdateDue) -> str | None:
        """The closure's gradients are tested each time that it was called; what it moved before is put back."""
        policy, record, optimizer, closure = self._policy, state.record, event.target, event.closure
        is_own = own_step(type(optimizer))  # it may use gradients that were there before the closure's
        is_due = id(record) in held.findings.skipped or held.round != record.round
        if is_own and is_due and policy.refuses(held, record, optimizer):
            policy.skipped(held, record)
            record.drop_gradients()
            return SKIP
        state.is_tested = self._training.backs_up(held, record)
        if is_own:  # it may move parameters before it calls the closure
            state.copy, state.has_moved = StateCopy(self._training.torch, [optimizer]), True

        def evaluate() -> Any:
            loss = event.result = closure()
            state.calls += 1
            state.has_moved = state.has_moved or state.calls > 1
            if self._training.capture.attempt(self._refuses_evaluation, held, state, optimizer):
                policy.skipped(held, record)
                raise NotApplied
            return loss

        held.update.in_closure, event.closure = True, evaluate
        return None

    def _refuses_evaluation(self, held: TrainingStep, state: UpdateState, optimizer: Any) -> bool:
        """Whether what a closure came to must not be applied."""
        records = [state.record]
        triggers = held.findings.triggers + self._training.checks.of_update(held, records, is_scaled=False)
        if not triggers:
            if state.record.repeats and state.copy is None:
                state.copy = StateCopy(self._training.torch, [optimizer])
            return False
        if state.has_moved and state.copy is not None:
            state.copy.put_back()
        self._policy.alarm(held, records, [trigger.with_(evaluation=state.calls) for trigger in triggers])
        return True

    # Steps of several parts

    def part_due(self, event: PartDue) -> str | None:
        """Answer whether a part of a step must not be made."""
        held, record = self._training.threads.held, self._watched.records.get(id(event.target))
        if record is None:
            return None
        if self._refuses_part(held, record, event):
            record.drop_gradients()  # which the part may have been told to do
            return SKIP
        event.state = record, held.update.phase
        return None

    def _refuses_part(self, held: TrainingStep, record: OptimizerSteps, event: PartDue) -> bool:
        update, optimizer = held.update, event.target
        if update.phase is None or update.phase.first == event.name:
            if update.is_refused:
                self._end_phase(held, record)
            is_refused = self._policy.refuses(held, record, optimizer)
            copy = None if is_refused else StateCopy(self._training.torch, [optimizer])
            update.phase = Phase(event.name, copy)
            return is_refused
        is_refused = update.is_refused or self._policy.refuses(held, record, optimizer)
        if is_refused:
            self._end_phase(held, record)
        return is_refused

    def _end_phase(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """A step that was refused is over, as are those of the optimizers within it."""
        self._policy.skipped(held, record)
        held.findings.skipped = set()

    def part_done(self, event: PartDone) -> None:
        """A part was made; with one that is not the first, the step, or that of an optimizer within it has made it."""
        if event.due.state is None:
            return
        (record, phase), held = event.due.state, self._training.threads.held
        if phase is None or phase.first == event.due.name:
            return
        if held.update.phase is not None:
            self._policy.applied(held, record)
        else:
            record.stepped(held.round)

    # Compiled functions, in which no hook sees an optimizer apply gradients

    def compiled_began(self, event: ForwardBegan) -> None:
        """A compiled function is called: an optimizer's step may be in it."""
        held, watched, seen = self._training.threads.held, self._watched, self._training.threads.held.findings
        held.update.is_compiled = True
        self._starts.forward_began(event)
        held.armed = held.armed and not self._training.torch.is_grad_enabled()
        if event.module is not None:
            return
        if held.round != held.update.tested and not seen.skipped:
            self._losses.test_compiled(held)
            if seen.triggers:
                self._policy.alarm(held, watched.due(seen.reached, held.round), seen.triggers)
        for record in watched.alive() if seen.skipped else ():
            record.drop_gradients()
        tested = {id(record) for record in watched.alive() if self._training.backs_up(held, record)}
        event.state = watched.steps, watched.versions(), tested

    def compiled_ended(self, event: ForwardEnded) -> None:
        """It has returned, or failed."""
        if not event.began.is_compiled:
            return
        held, watched, state = self._training.threads.held, self._watched, event.began.state
        held.update.is_compiled = False
        if state is None or state[0] != watched.steps:
            return
        is_refused, has_moved = bool(held.findings.skipped), state[1] != watched.versions()
        for record in watched.alive():
            if is_refused:
                self._policy.skipped(held, record)
            elif has_moved:  # its step was compiled
                self._ended(held, record, id(record) in state[2])
