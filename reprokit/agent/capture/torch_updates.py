"""What captures see of a PyTorch step behind its forward pass: losses, clipping, scaling, and updates.

A step is applied or left out, also one by a closure, in parts, or compiled. An overflow that a GradScaler sees is no
alarm, one that no scale cures is.
"""

from __future__ import annotations

from itertools import islice

from ..events import SKIP, NotApplied
from ..pytorch import private_api
from ..pytorch.decisions import own_step
from . import checks
from .header import GRADIENT
from .torch_copies import StateCopy
from .torch_steps import PartialUpdate, StepStartListener, TrainingStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .. import events
    from .torch_capture import CaptureContext, OptimizerSteps

SCALE_EACH = 32  # steps of which one looks at the scale of a fused optimizer, which skips by itself
MAX_NODES = 16  # of a graph in which a loss's target is looked for


class LossChecks:
    """Tests what leads to gradients, and gradients that others than an optimizer change."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._watched = training.watched
        self._ranks = training.ranks
        self._checks = training.checks
        self._policy = training.policy

    def output_computed(self, event: events.OutputComputed) -> None:
        """Judge what a module gave in the forward pass of a step."""
        step = self._training.threads.step
        if step.is_begun and self._training.torch.is_grad_enabled():
            self._checks.of_output(step.findings, event.module, event.output)

    # Backward passes

    def backward_began(self, event: events.BackwardBegan) -> None:
        """See what backward() is called of."""
        if not self._watched.records:
            return
        step, tensors = self._training.threads.step, event.tensors
        findings = step.findings
        findings.finite_gradients = {}
        loss = tensors if hasattr(tensors, "data_ptr") else next(iter(tensors), None)
        if loss is None or (event.number is None and loss.numel() == 0):
            return
        step.losses.note(loss, event.number)
        if not step.losses.is_scaled:  # with what a GradScaler multiplies, it may well overflow
            self._checks.of_loss(step, loss, event.number)
        if self._ranks.are_several:
            self._ranks.watch(self._watched.parameters())
            self._mark_for_ranks(step, tensors)
        if findings.triggers and len(self._watched.records) > 1:
            findings.loss_parameters = {id(node.variable) for node in _nodes(tensors) if hasattr(node, "variable")}
        if not (step.batches.are_loaded or step.batches.earlier or step.update.in_closure):
            target = _loss_target(tensors)
            if target is not None:
                step.batches.add("loss", {"target": target[1]}, target[0])

    def _mark_for_ranks(self, step: TrainingStep, tensors: Any) -> None:
        """What other processes cannot see in the gradients goes with them."""
        findings, marks = step.findings, self._ranks.marks
        if findings.triggers:
            marks.tell(findings.triggers[0], self._training.parameters().values())
        elif (findings.device_losses or findings.device_counts) and hasattr(tensors, "register_hook"):
            marks.mark_from_device(tensors, self._checks.signals(findings, with_limit=True))

    def backward_ended(self, event: events.BackwardEnded) -> None:
        """A backward pass is over; what it was called of, or compiled code will apply, is judged at once."""
        step = self._training.threads.step
        if event.has_failed:
            return
        step.round += 1
        step.start.root = None
        if step.findings.triggers or step.update.is_compiled:
            self._judge(step)
        step.rearm()

    def _judge(self, step: TrainingStep) -> None:
        findings, update = step.findings, step.update
        if update.in_closure or not self._watched.records:
            return
        if update.is_compiled and not findings.triggers:
            self.test_compiled(step)
        if update.is_refused:
            findings.triggers = []  # the step is refused already, and its other backward passes are nobody's
        if findings.triggers and self._ranks.have_reduced(step.start.origin[1]):
            records = self._watched.due(findings.loss_parameters, step.round)
            self._policy.alarm(step, records, findings.triggers + self._training.triggers(GRADIENT, records))
            for record in self._watched.alive() if update.is_compiled else ():
                record.drop_gradients()

    def test_compiled(self, step: TrainingStep) -> None:
        """Gradients that compiled code is about to apply, perhaps."""
        step.update.tested = step.round
        if not step.losses.is_scaled:
            records = self._watched.with_gradients()
            step.findings.triggers += self._checks.of_update(step, records, is_scaled=False)

    # Clipping

    def clipping_due(self, event: events.ClippingDue) -> str | None:
        """Test gradients before clipping spreads what is not finite to all of them."""
        step = self._training.threads.step
        if not self._watched.records or step.losses.is_scaled:  # a GradScaler has found out by itself
            return None
        return SKIP if step.findings.skipped or self._refuses_clipping(step, event) else None

    def _refuses_clipping(self, step: TrainingStep, event: events.ClippingDue) -> bool:
        parameters, findings = event.parameters, step.findings
        parameters = [parameters] if hasattr(parameters, "data_ptr") else parameters
        gradients = [gradient for gradient in [parameter.grad for parameter in parameters] if gradient is not None]
        wanted = set(map(id, parameters))
        records = [one for one in self._watched.alive() if any(id(p) in wanted for p in one.parameters())]
        if not gradients or not records:
            return False
        if self._training.tests.are_finite([*gradients, *self._checks.signals(findings)]):
            event.state = gradients, set(map(id, records))
            return False
        findings.triggers += self._checks.on_devices(findings) + self._training.triggers(GRADIENT, records)
        if not findings.triggers or step.update.in_closure:  # whose evaluation is judged when it is over
            return False
        self._policy.alarm(step, records, findings.triggers)
        return True

    def gradients_clipped(self, event: events.GradientsClipped) -> None:
        """Remember that these were tested, as long as nothing changes them."""
        if event.due.state is not None:
            findings = self._training.threads.step.findings
            findings.note_finite(*event.due.state)
            findings.device_losses, findings.device_counts = [], []

    # GradScalers

    def loss_scaled(self, event: events.LossScaled) -> None:
        """See a loss before it is scaled."""
        loss = event.loss
        if event.scaled is not loss and hasattr(loss, "data_ptr") and self._watched.records:
            step = self._training.threads.step
            step.losses.is_scaled = True
            self._checks.of_loss(step, loss)

    def scaled_update_ended(self, event: events.ScaledUpdateEnded) -> None:
        """Overflows are how a GradScaler finds its scale; that it finds none is an alarm."""
        record, scaler, has_stepped = self._watched.records.get(id(event.target)), event.scaler, event.has_updated
        if record is None or not private_api.is_scaler_enabled(scaler):
            return
        step, training = self._training.threads.step, self._training
        if has_stepped:
            record.overflows = 0
            if not private_api.skips_by_itself(event.target) or record.steps % SCALE_EACH:
                return
        record.overflows += not has_stepped
        triggers = []
        if not has_stepped:  # what is no overflow, though it looks like one to a GradScaler
            triggers += step.findings.triggers + self._checks.on_devices(step.findings)
            triggers = triggers or self._ranks.told(training.parameters)
        found = checks.loss_scale(float(scaler.get_scale()), record.overflows)
        if found is not None:
            triggers += [found, *training.triggers(GRADIENT, [record])]
        if triggers:
            self._policy.alarm(step, [record], triggers)
            record.overflows = 0
        if not has_stepped:
            if step.findings.skipped:
                self._policy.put_buffers_back(step)
            record.round = step.round
            step.end(record)


class UpdateState:
    """What an update that is asked for is known by until it is done."""

    def __init__(self, record: OptimizerSteps) -> None:
        self.record = record
        self.is_tested = False  # the parameters are to be, after it
        self.calls = 0  # of the closure, where there is one
        self.copy: StateCopy | None = None  # of what a closure's gradients may have moved
        self.has_moved = False  # what the copy is of


class UpdateChecks:
    """Tests gradients when an optimizer is about to apply them."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._watched = training.watched
        self._policy = training.policy
        self.starts = StepStartListener(training)
        self.losses = LossChecks(training)

    def optimizer_made(self, event: events.OptimizerMade) -> None:
        """Watch the optimizers that are made from now on."""
        if self._watched.only is None:
            self.watch(event.target)

    def watch(self, optimizer: Any) -> OptimizerSteps:
        """Watch the steps of an optimizer."""
        known = self._watched.records.get(id(optimizer))
        if known is not None and known.reference() is optimizer:
            return known
        record, step = self._watched.add(optimizer), self._training.threads.step
        step.buffers.forget()
        if not step.is_begun:
            step.armed = True
        return record

    # Whole steps

    def update_due(self, event: events.UpdateDue) -> str | None:
        """Answer whether an update must not be made."""
        step, optimizer = self._training.threads.step, event.target
        record = self._watched.records.get(id(optimizer))
        if event.is_nested or (record is None and self._watched.only is not None):
            return None
        if record is None or record.reference() is not optimizer:
            record = self.watch(optimizer)  # a copy, or one that was unpickled
        if record.thread is not step.thread:
            record.thread = step.thread
            step.buffers.forget()
        state = event.state = UpdateState(record)
        if event.closure is not None:
            return self._due_with_closure(step, state, event)
        if self._policy.refuses(step, record, optimizer):
            self._policy.skipped(step, record)
            return SKIP
        state.is_tested = self._training.backs_up(step, record)
        return None

    def update_done(self, event: events.UpdateDone) -> None:
        """An update was made; one that ruined the parameters is taken back."""
        state: UpdateState | None = None if event.due is None else event.due.state
        if state is None:
            return
        record = state.record
        if state.calls:
            record.repeats = state.calls > 1 or (record.repeats and record.steps > 0)
        self._ended(self._training.threads.step, record, state.is_tested)

    def _ended(self, step: TrainingStep, record: OptimizerSteps, is_tested: bool) -> None:
        if is_tested and self._policy.takes_back(step, record):
            self._policy.skipped(step, record)
        else:
            self._policy.applied(step, record)

    def update_ended(self, event: events.UpdateEnded) -> None:
        """An update is over, however it ended."""
        if event.due.state is not None:
            self._training.threads.step.update.in_closure = False

    # Closures

    def _due_with_closure(self, step: TrainingStep, state: UpdateState, event: events.UpdateDue) -> str | None:
        """Test the closure's gradients each time that it was called; what it moved before is put back."""
        policy, record, optimizer, closure = self._policy, state.record, event.target, event.closure
        is_own = own_step(type(optimizer))  # it may use gradients that were there before the closure's
        is_due = id(record) in step.findings.skipped or step.round != record.round
        if is_own and is_due and policy.refuses(step, record, optimizer):
            policy.skipped(step, record)
            record.drop_gradients()
            return SKIP
        state.is_tested = self._training.backs_up(step, record)
        if is_own:  # it may move parameters before it calls the closure
            state.copy, state.has_moved = StateCopy(self._training.torch, [optimizer]), True

        def evaluate() -> Any:
            loss = event.result = closure()
            state.calls += 1
            state.has_moved = state.has_moved or state.calls > 1
            if self._training.capture.attempt(self._refuses_evaluation, step, state, optimizer):
                policy.skipped(step, record)
                raise NotApplied
            return loss

        step.update.in_closure, event.closure = True, evaluate
        return None

    def _refuses_evaluation(self, step: TrainingStep, state: UpdateState, optimizer: Any) -> bool:
        """Return whether what a closure came to must not be applied."""
        records = [state.record]
        triggers = step.findings.triggers + self._training.checks.of_update(step, records, is_scaled=False)
        if not triggers:
            if state.record.repeats and state.copy is None:
                state.copy = StateCopy(self._training.torch, [optimizer])
            return False
        if state.has_moved and state.copy is not None:
            state.copy.restore()
        self._policy.alarm(step, records, [trigger.with_(evaluation=state.calls) for trigger in triggers])
        return True

    # Steps of several parts

    def part_due(self, event: events.PartDue) -> str | None:
        """Answer whether a part of a step must not be made."""
        step, record = self._training.threads.step, self._watched.records.get(id(event.target))
        if record is None:
            return None
        if self._refuses_part(step, record, event):
            record.drop_gradients()  # which the part may have been told to do
            return SKIP
        event.state = record, step.update.phase
        return None

    def _refuses_part(self, step: TrainingStep, record: OptimizerSteps, event: events.PartDue) -> bool:
        update, optimizer = step.update, event.target
        if update.phase is None or update.phase.first == event.name:
            if update.is_refused:
                self._end_phase(step, record)
            is_refused = self._policy.refuses(step, record, optimizer)
            copy = None if is_refused else StateCopy(self._training.torch, [optimizer])
            update.phase = PartialUpdate(event.name, copy)
            return is_refused
        is_refused = update.is_refused or self._policy.refuses(step, record, optimizer)
        if is_refused:
            self._end_phase(step, record)
        return is_refused

    def _end_phase(self, step: TrainingStep, record: OptimizerSteps) -> None:
        """A step that was refused is over, as are those of the optimizers within it."""
        self._policy.skipped(step, record)
        step.findings.skipped = set()

    def part_done(self, event: events.PartDone) -> None:
        """A part was made; with one that is not the first, the step, or that of an optimizer within it has made it."""
        if event.due.state is None:
            return
        (record, phase), step = event.due.state, self._training.threads.step
        if phase is None or phase.first == event.due.name:
            return
        if step.update.phase is not None:
            self._policy.applied(step, record)
        else:
            record.stepped(step.round)

    # Compiled functions, in which no hook sees an optimizer apply gradients

    def forward_began(self, event: events.ForwardBegan) -> None:
        """A module is called, or a compiled function: an optimizer's step may be in it."""
        self.starts.forward_began(event)
        if event.is_compiled:
            self._compiled_began(event)

    def _compiled_began(self, event: events.ForwardBegan) -> None:
        step, watched, findings = self._training.threads.step, self._watched, self._training.threads.step.findings
        step.update.is_compiled = True
        step.armed = step.armed and not self._training.torch.is_grad_enabled()
        if event.module is not None:
            return
        if step.round != step.update.tested and not findings.skipped:
            self.losses.test_compiled(step)
            if findings.triggers:
                self._policy.alarm(step, watched.due(findings.loss_parameters, step.round), findings.triggers)
        for record in watched.alive() if findings.skipped else ():
            record.drop_gradients()
        tested = {id(record) for record in watched.alive() if self._training.backs_up(step, record)}
        event.state = watched.steps, watched.versions(), tested

    def compiled_ended(self, event: events.ForwardEnded) -> None:
        """It has returned, or failed."""
        if not event.began.is_compiled:
            return
        step, watched, state = self._training.threads.step, self._watched, event.began.state
        step.update.is_compiled = False
        if state is None or state[0] != watched.steps:
            return
        is_refused, has_moved = bool(step.findings.skipped), state[1] != watched.versions()
        for record in watched.alive():
            if is_refused:
                self._policy.skipped(step, record)
            elif has_moved:  # its step was compiled
                self._ended(step, record, id(record) in state[2])


def _nodes(tensors: Any) -> Iterator[Any]:
    """Yield the nodes of the graph that a loss, or several, was computed by, the last first."""
    waiting = [getattr(one, "grad_fn", None) for one in ([tensors] if hasattr(tensors, "grad_fn") else tensors)]
    seen: set[Any] = set()
    for node in waiting:  # which grows
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def _loss_target(loss: Any) -> tuple[str, Any] | None:
    """Return what a loss was computed against, where its graph says so: the name of its node, and the target."""
    for node in islice(_nodes(loss), MAX_NODES):
        target = getattr(node, "_saved_target", None)
        if target is not None:
            return node.name(), target
    return None
