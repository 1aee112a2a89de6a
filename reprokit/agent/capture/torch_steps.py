"""Steps of PyTorch's optimizers, also by closures, in parts and compiled: applied, or left out."""

from __future__ import annotations

from ..events import SKIP, NotApplied
from ..pytorch.decisions import own_step
from .torch_training import OptimizerSteps, drop_gradients
from .torch_updates import StateCopy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
    from .torch_alarms import Alarms
    from .torch_beginnings import Beginnings
    from .torch_checks import StepChecks
    from .torch_held import TrainingStep
    from .torch_losses import Losses
    from .torch_training import Training

    Function = Callable[..., Any]


class StepEnds:
    """Ends the steps of threads."""

    def __init__(self, training: Training, alarms: Alarms) -> None:
        self._watched = training.watched
        self._alarms = alarms

    def applied(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """A step was made."""
        record.stepped(held.round)
        watched, epoch = self._watched, held.start.epoch
        watched.steps += 1
        if len(watched.records) > 1:
            held.start.note_update()
        if epoch is not None:
            epoch.steps += 1
        self.end(held, record)

    def skipped(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """A step is left out: this optimizer's turn has passed, that of others with the same gradients comes yet."""
        remaining = held.findings.skipped - {id(record)}
        record.stepped(held.round)
        self._watched.steps += 1
        self._alarms.put_buffers_back(held)
        self.end(held, record)
        held.findings.skipped = remaining

    def end(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """The step is over, and the next module's call may begin another."""
        held.end(record)
        held.armed = True


class Refusals:
    """Tells whether gradients may be applied; what is wrong with them is captured."""

    def __init__(self, training: Training, checks: StepChecks, alarms: Alarms) -> None:
        self._training = training
        self._checks = checks
        self._alarms = alarms

    def refuses(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any) -> bool:
        """Whether the gradients must not be applied; where training is to stop it does so here."""
        if self._checks.is_fine(held, record, optimizer):
            return False
        if id(record) in held.findings.skipped:
            return True
        if self._training.is_recorded():
            return False
        records, watched = [record], self._training.watched
        if len(watched.records) > 1:
            records += watched.following(record, held.round)
        is_scaled = getattr(optimizer, "found_inf", None) is not None  # it skips on the device, by itself
        triggers = held.findings.triggers + self._checks.of_update(held, records, is_scaled)
        if triggers:
            self._alarms.alarm(held, records, triggers)
        return bool(triggers)

    def refuses_before_closure(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any) -> bool:
        """Whether gradients that are there before a closure is called, which may be used too, must not be."""
        is_skipped = id(record) in held.findings.skipped
        return is_skipped or (held.round != record.round and self.refuses(held, record, optimizer))

    def refuses_evaluation(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any, closure: _Closure) -> bool:
        """Whether what a closure came to must not be applied."""
        triggers = held.findings.triggers + self._checks.of_update(held, [record], is_scaled=False)
        if not triggers:
            if record.repeats and closure.copy is None:
                closure.copy = StateCopy(self._training.torch, [optimizer])
            return False
        if closure.has_moved and closure.copy is not None:
            closure.copy.put_back()
        self._alarms.alarm(held, [record], [trigger.with_(evaluation=closure.calls) for trigger in triggers])
        return True

    def is_ruinous(self, held: TrainingStep, record: OptimizerSteps) -> bool:
        """Whether an update of finite gradients has made parameters that are not finite; then it is taken back."""
        training = self._training
        if training.is_recorded() or not training.updates.is_ruined(record):
            return False
        triggers = training.snapshooter.parameter_triggers(training.models(), [record])
        training.updates.put_back(record)
        self._alarms.alarm(held, [record], triggers)
        return True


class Phase:
    """The step that a thread is in the middle of."""

    def __init__(self, first: str, copy: StateCopy | None) -> None:
        self.first = first  # the part that it began with
        self.copy = copy  # of what that has moved; None where it was refused


class Phases:
    """Takes the parts of steps."""

    def __init__(self, torch: Any, refusals: Refusals, ends: StepEnds) -> None:
        self._torch = torch
        self._refusals = refusals
        self._ends = ends

    def refuses(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any, name: str) -> bool:
        """Whether this part must not be made."""
        phase = held.update.phase
        if phase is None or phase.first == name:
            self._end(held, record, phase)
            is_refused = self._refusals.refuses(held, record, optimizer)
            copy = None if is_refused else StateCopy(self._torch, [optimizer])
            held.update.phase = Phase(name, copy)
            return is_refused
        if phase.copy is not None and not self._refusals.refuses(held, record, optimizer):
            return False
        self._end(held, record, Phase(name, None))
        return True

    def _end(self, held: TrainingStep, record: OptimizerSteps, phase: Phase | None) -> None:
        if phase is not None and phase.copy is None:
            self._ends.skipped(held, record)
            held.findings.skipped = set()  # nor were the steps of the optimizers within it
            held.update.phase = None

    def made(self, held: TrainingStep, record: OptimizerSteps) -> None:
        """A part that is not the first was made, and with it, if there is one, the step of an optimizer within."""
        if held.update.phase is not None:
            self._ends.applied(held, record)
        else:
            record.stepped(held.round)


class UpdateState:
    """What an update that is asked for is known by until it is done."""

    def __init__(self, record: OptimizerSteps) -> None:
        self.record = record
        self.is_tested = False  # the parameters are to be, after it
        self.closure: _Closure | None = None


class Steps:
    """Tests gradients when an optimizer is about to apply them."""

    def __init__(self, training: Training, refusals: Refusals, ends: StepEnds) -> None:
        self._training = training
        self._watched = training.watched
        self._refusals = refusals
        self._ends = ends
        self._phases = Phases(training.torch, refusals, ends)

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

    def part_due(self, event: PartDue) -> str | None:
        """Answer whether a part of a step must not be made."""
        held, record = self._training.threads.held, self._watched.records.get(id(event.target))
        if record is None:
            return None
        if self._phases.refuses(held, record, event.target, event.name):
            drop_gradients([record])  # which the part may have been told to do
            return SKIP
        event.state = record, held.update.phase
        return None

    def part_done(self, event: PartDone) -> None:
        """A part of a step was made."""
        if event.due.state is not None:
            record, phase = event.due.state
            if phase is not None and phase.first != event.due.name:
                self._phases.made(self._training.threads.held, record)

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
        if self._refusals.refuses(held, record, optimizer):
            self._ends.skipped(held, record)
            return SKIP
        state.is_tested = self._training.updates.before(held, record, optimizer)
        return None

    def update_done(self, event: UpdateDone) -> None:
        """An update was made; one that ruined the parameters is taken back."""
        state: UpdateState | None = None if event.due is None else event.due.state
        if state is None:
            return
        held, record = self._training.threads.held, state.record
        if state.closure is not None:
            record.repeats = state.closure.calls > 1 or (record.repeats and record.steps > 0)
        if state.is_tested and self._refusals.is_ruinous(held, record):
            self._ends.skipped(held, record)
        else:
            self._ends.applied(held, record)

    def update_ended(self, event: UpdateEnded) -> None:
        """An update is over, however it ended."""
        if event.due.state is not None:
            self._training.threads.held.update.closure = None

    def _due_with_closure(self, held: TrainingStep, state: UpdateState, event: UpdateDue) -> str | None:
        """The closure's gradients are tested each time that it was called; what it moved before is put back."""
        refusals, record, optimizer, is_own = self._refusals, state.record, event.target, own_step(type(event.target))
        if is_own and refusals.refuses_before_closure(held, record, optimizer):
            self._ends.skipped(held, record)
            drop_gradients([record])
            return SKIP
        state.is_tested = self._training.updates.before(held, record, optimizer)
        guarded = state.closure = _Closure(event.closure)
        if is_own:  # it may move parameters before it calls the closure
            guarded.copy, guarded.has_moved = StateCopy(self._training.torch, [optimizer]), True

        def evaluate() -> Any:
            loss = event.result = guarded()
            if self._training.capture.attempt(refusals.refuses_evaluation, held, record, optimizer, guarded):
                self._ends.skipped(held, record)
                raise NotApplied
            return loss

        held.update.closure = event.closure = evaluate
        return None


class Compiling:
    """Looks at steps from outside of compiled functions, in which no hook sees an optimizer apply them."""

    def __init__(
        self,
        training: Training,
        alarms: Alarms,
        beginnings: Beginnings,
        losses: Losses,
        refusals: Refusals,
        ends: StepEnds,
    ) -> None:
        self._training = training
        self._watched = training.watched
        self._alarms = alarms
        self._beginnings = beginnings
        self._losses = losses
        self._refusals = refusals
        self._ends = ends

    def forward_began(self, event: ForwardBegan) -> None:
        """A compiled function is called: an optimizer's step may be in it, which no hook sees."""
        held, watched = self._training.threads.held, self._watched
        held.update.is_compiled = True
        self._beginnings.forward_began(event)
        held.armed = held.armed and not self._training.torch.is_grad_enabled()
        if event.module is not None:
            return
        if held.round != held.update.tested and not held.findings.skipped:
            self._losses.test_compiled(held)
            if held.findings.triggers:
                self._alarms.alarm(held, self._alarms.due(held), held.findings.triggers)
        if held.findings.skipped:
            drop_gradients(watched.alive())
        updates = self._training.updates
        tested = {id(record) for record in watched.alive() if updates.before(held, record, record.reference())}
        event.state = watched.steps, watched.versions(), tested

    def forward_ended(self, event: ForwardEnded) -> None:
        """It has returned, or failed."""
        if not event.began.is_compiled:
            return
        held, seen = self._training.threads.held, event.began.state
        held.update.is_compiled = False
        if seen is None or seen[0] != self._watched.steps:
            return
        if held.findings.skipped:
            for record in self._watched.alive():
                self._ends.skipped(held, record)
        elif seen[1] != self._watched.versions():
            for record in self._watched.alive():  # its step was compiled
                if id(record) in seen[2] and self._refusals.is_ruinous(held, record):
                    self._ends.skipped(held, record)
                else:
                    self._ends.applied(held, record)


class _Closure:
    """A closure that is called by an optimizer, and what is known of its calls."""

    def __init__(self, closure: Function) -> None:
        self._closure = closure
        self.calls = 0
        self.loss: Any = None
        self.copy: StateCopy | None = None
        self.has_moved = False  # what the copy is of

    def __call__(self) -> Any:
        self.loss = self._closure()
        self.calls += 1
        self.has_moved = self.has_moved or self.calls > 1
        return self.loss
