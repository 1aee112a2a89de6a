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
from .torch_steps import Phase, StepStarts, TrainingStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .. import events
    from .torch_capture import OptimizerSteps, Training

SCALE_EACH = 32  # steps of which one looks at the scale of a fused optimizer, which skips by itself
MAX_NODES = 16  # of a graph in which a loss's target is looked for


class Losses:
    """Tests what leads to gradients, and gradients that others than an optimizer change."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._watched = training.watched
        self._ranks = training.ranks
        self._checks = training.checks
        self._policy = training.policy

    def output_computed(self, event: events.OutputComputed) -> None:
        """Judge what a module gave in the forward pass of a step."""
        held = self._training.threads.held
        if held.is_begun and self._training.torch.is_grad_enabled():
            self._checks.of_output(held.findings, event.module, event.output)

    # Backward passes

    def backward_began(self, event: events.BackwardBegan) -> None:
        """See what backward() is called of."""
        if not self._watched.records:
            return
        held, tensors = self._training.threads.held, event.tensors
        seen = held.findings
        seen.clean = {}
        loss = tensors if hasattr(tensors, "data_ptr") else next(iter(tensors), None)
        if loss is None or (event.number is None and loss.numel() == 0):
            return
        held.losses.note(loss, event.number)
        if not held.losses.is_scaled:  # with what a GradScaler multiplies, it may well overflow
            self._checks.of_loss(held, loss, event.number)
        if self._ranks.are_several:
            self._ranks.watch(self._watched.parameters())
            self._tell_ranks(held, tensors)
        if seen.triggers and len(self._watched.records) > 1:
            seen.reached = {id(node.variable) for node in _nodes(tensors) if hasattr(node, "variable")}
        if not (held.batches.are_loaded or held.batches.earlier or held.update.in_closure):
            target = _loss_target(tensors)
            if target is not None:
                held.batches.add("loss", {"target": target[1]}, target[0])

    def _tell_ranks(self, held: TrainingStep, tensors: Any) -> None:
        """What other processes cannot see in the gradients goes with them."""
        seen, marks = held.findings, self._ranks.marks
        if seen.triggers:
            marks.tell(seen.triggers[0], self._training.parameters().values())
        elif (seen.far or seen.counts) and hasattr(tensors, "register_hook"):
            marks.tell_from_device(tensors, self._checks.signals(seen, with_limit=True))

    def backward_ended(self, event: events.BackwardEnded) -> None:
        """A backward pass is over; what it was called of, or compiled code will apply, is judged at once."""
        held = self._training.threads.held
        if event.has_failed:
            return
        held.round += 1
        held.start.root = None
        if held.findings.triggers or held.update.is_compiled:
            self._judge(held)
        held.rearm()

    def _judge(self, held: TrainingStep) -> None:
        seen, update = held.findings, held.update
        if update.in_closure or not self._watched.records:
            return
        if update.is_compiled and not seen.triggers:
            self.test_compiled(held)
        if update.is_refused:
            seen.triggers = []  # the step is refused already, and its other backward passes are nobody's
        if seen.triggers and self._ranks.have_heard(held.start.began_at[1]):
            records = self._watched.due(seen.reached, held.round)
            self._policy.alarm(held, records, seen.triggers + self._training.triggers(GRADIENT, records))
            for record in self._watched.alive() if update.is_compiled else ():
                record.drop_gradients()

    def test_compiled(self, held: TrainingStep) -> None:
        """Gradients that compiled code is about to apply, perhaps."""
        held.update.tested = held.round
        if not held.losses.is_scaled:
            records = self._watched.with_gradients()
            held.findings.triggers += self._checks.of_update(held, records, is_scaled=False)

    # Clipping

    def clipping_due(self, event: events.ClippingDue) -> str | None:
        """Test gradients before clipping spreads what is not finite to all of them."""
        held = self._training.threads.held
        if not self._watched.records or held.losses.is_scaled:  # a GradScaler has found out by itself
            return None
        return SKIP if held.findings.skipped or self._refuses_clipping(held, event) else None

    def _refuses_clipping(self, held: TrainingStep, event: events.ClippingDue) -> bool:
        parameters, seen = event.parameters, held.findings
        parameters = [parameters] if hasattr(parameters, "data_ptr") else parameters
        gradients = [gradient for gradient in [parameter.grad for parameter in parameters] if gradient is not None]
        wanted = set(map(id, parameters))
        records = [one for one in self._watched.alive() if any(id(p) in wanted for p in one.parameters())]
        if not gradients or not records:
            return False
        if self._training.tests.are_finite([*gradients, *self._checks.signals(seen)]):
            event.state = gradients, set(map(id, records))
            return False
        seen.triggers += self._checks.on_devices(seen) + self._training.triggers(GRADIENT, records)
        if not seen.triggers or held.update.in_closure:  # whose evaluation is judged when it is over
            return False
        self._policy.alarm(held, records, seen.triggers)
        return True

    def gradients_clipped(self, event: events.GradientsClipped) -> None:
        """Remember that these were tested, as long as nothing changes them."""
        if event.due.state is not None:
            seen = self._training.threads.held.findings
            seen.note_clean(*event.due.state)
            seen.far, seen.counts = [], []

    # GradScalers

    def loss_scaled(self, event: events.LossScaled) -> None:
        """See a loss before it is scaled."""
        loss = event.loss
        if event.scaled is not loss and hasattr(loss, "data_ptr") and self._watched.records:
            held = self._training.threads.held
            held.losses.is_scaled = True
            self._checks.of_loss(held, loss)

    def scaled_update_ended(self, event: events.ScaledUpdateEnded) -> None:
        """Overflows are how a GradScaler finds its scale; that it finds none is an alarm."""
        record, scaler, has_stepped = self._watched.records.get(id(event.target)), event.scaler, event.has_updated
        if record is None or not private_api.is_scaler_enabled(scaler):
            return
        held, training = self._training.threads.held, self._training
        if has_stepped:
            record.overflows = 0
            if not private_api.skips_by_itself(event.target) or record.steps % SCALE_EACH:
                return
        record.overflows += not has_stepped
        triggers = []
        if not has_stepped:  # what is no overflow, though it looks like one to a GradScaler
            triggers += held.findings.triggers + self._checks.on_devices(held.findings)
            triggers = triggers or self._ranks.told(training.parameters)
        found = checks.loss_scale(float(scaler.get_scale()), record.overflows)
        if found is not None:
            triggers += [found, *training.triggers(GRADIENT, [record])]
        if triggers:
            self._policy.alarm(held, [record], triggers)
            record.overflows = 0
        if not has_stepped:
            if held.findings.skipped:
                self._policy.put_buffers_back(held)
            record.round = held.round
            held.end(record)


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

    def __init__(self, training: Training) -> None:
        self._training = training
        self._watched = training.watched
        self._policy = training.policy
        self.starts = StepStarts(training)
        self.losses = Losses(training)

    def optimizer_made(self, event: events.OptimizerMade) -> None:
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

    def update_due(self, event: events.UpdateDue) -> str | None:
        """Answer whether an update must not be made."""
        held, optimizer = self._training.threads.held, event.target
        record = self._watched.records.get(id(optimizer))
        if event.is_nested or (record is None and self._watched.only is not None):
            return None
        if record is None or record.reference() is not optimizer:
            record = self.watch(optimizer)  # a copy, or one that was unpickled
        if record.thread is not held.thread:
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

    def update_done(self, event: events.UpdateDone) -> None:
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

    def update_ended(self, event: events.UpdateEnded) -> None:
        """An update is over, however it ended."""
        if event.due.state is not None:
            self._training.threads.held.update.in_closure = False

    # Closures

    def _due_with_closure(self, held: TrainingStep, state: UpdateState, event: events.UpdateDue) -> str | None:
        """Test the closure's gradients each time that it was called; what it moved before is put back."""
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
        """Return whether what a closure came to must not be applied."""
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

    def part_due(self, event: events.PartDue) -> str | None:
        """Answer whether a part of a step must not be made."""
        held, record = self._training.threads.held, self._watched.records.get(id(event.target))
        if record is None:
            return None
        if self._refuses_part(held, record, event):
            record.drop_gradients()  # which the part may have been told to do
            return SKIP
        event.state = record, held.update.phase
        return None

    def _refuses_part(self, held: TrainingStep, record: OptimizerSteps, event: events.PartDue) -> bool:
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

    def part_done(self, event: events.PartDone) -> None:
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

    def forward_began(self, event: events.ForwardBegan) -> None:
        """A module is called, or a compiled function: an optimizer's step may be in it."""
        self.starts.forward_began(event)
        if event.is_compiled:
            self._compiled_began(event)

    def _compiled_began(self, event: events.ForwardBegan) -> None:
        held, watched, seen = self._training.threads.held, self._watched, self._training.threads.held.findings
        held.update.is_compiled = True
        held.armed = held.armed and not self._training.torch.is_grad_enabled()
        if event.module is not None:
            return
        if held.round != held.update.tested and not seen.skipped:
            self.losses.test_compiled(held)
            if seen.triggers:
                self._policy.alarm(held, watched.due(seen.reached, held.round), seen.triggers)
        for record in watched.alive() if seen.skipped else ():
            record.drop_gradients()
        tested = {id(record) for record in watched.alive() if self._training.backs_up(held, record)}
        event.state = watched.steps, watched.versions(), tested

    def compiled_ended(self, event: events.ForwardEnded) -> None:
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
