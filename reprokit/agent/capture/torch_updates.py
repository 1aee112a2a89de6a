"""Follows a PyTorch step from its first batch, and checks it at losses, clipping, loss scaling, and updates.

A step is applied or skipped, also one by a closure, in parts, or compiled. An overflow that a GradScaler handles raises
no alarm; overflows that no scale cures do.
"""

from __future__ import annotations

from itertools import islice

from ..events.steps import SKIP, NotApplied
from ..pytorch import private_api
from ..pytorch.decisions import own_step
from . import checks
from .header import GRADIENT
from .settings import ROLLBACK
from .torch_checks import StepChecks
from .torch_copies import StateCopy
from .torch_policy import CapturePolicy
from .torch_steps import BEGUN, BETWEEN, EVALUATED, PartialUpdate, TrainingStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..events import steps as events
    from .torch_checks import CaptureContext
    from .torch_steps import LoaderPass, OptimizerSteps

SCALE_EACH = 32  # steps between two looks at the scale of a fused optimizer, which skips overflows by itself
MAX_ENTRIES = 64  # calls of a root model in one step
MAX_NODES = 16  # of the graph that are searched for the loss's target


class StepStartListener:
    """Detects the start of each step and records its inputs."""

    def __init__(self, training: CaptureContext, policy: CapturePolicy) -> None:
        self._training, self._policy = training, policy
        self._watched = training.watched
        self._is_grad_enabled = training.torch.is_grad_enabled
        self._rolls_back = training.capture.settings.action == ROLLBACK

    def forward_began(self, event: events.ForwardBegan) -> None:
        """Handle the call of a module or of a compiled function (then the module may be None)."""
        step, module = self._training.threads.step, event.module
        if not step.armed:
            return
        if self._is_grad_enabled():
            if step.start.root is None or step.start.root is module:
                self._begin_or_go_on(step, module, [event.arguments, dict(event.keywords)])
            return
        if step.state is BETWEEN:
            step.state = EVALUATED
        if module is not None and module.training:
            self._keep_buffers(step, module)

    def _begin_or_go_on(self, step: TrainingStep, module: Any, inputs: Any) -> None:
        """Begin the step at the root model's call, or continue it with its next batch."""
        if step.state is not BEGUN:
            self._begin(step, module)
        source = "" if module is None else module
        if not step.batches.are_loaded:
            step.batches.add("forward", inputs, source)
            step.armed = not step.update.in_closure
            step.start.root = module
            return
        step.armed = False
        if len(step.start.root_calls) < MAX_ENTRIES:
            step.start.root_calls.append((source, inputs))

    def _begin(self, step: TrainingStep, module: Any) -> None:
        start = step.start
        step.begin(module, module is None or bool(module.training))
        self._training.ranks.forget()
        if self._rolls_back:
            self._policy.keep_rollback_state(step)
        start.random.keep()
        start.has_random = True
        if step.buffers.are_none:
            step.buffers.is_kept = True
        else:
            self._keep_buffers(step, module)

    def _keep_buffers(self, step: TrainingStep, module: Any) -> None:
        if not step.buffers.is_kept:
            step.buffers.keep(lambda: self._training.models() or ([] if module is None else [module]))

    def loader_began(self, event: events.LoaderBegan) -> None:
        """Count the epochs of a DataLoader."""
        event.notes[self] = self._watched.next_epoch(event.loader)

    def loader_exhausted(self, event: events.LoaderExhausted) -> None:
        """Drop what an exhausted DataLoader fetched for no step."""
        self._training.threads.step.exhaust(self._pass_of(event))

    def batch_fetched(self, event: events.BatchFetched) -> None:
        """Record a batch that a DataLoader returned, unless it is fetched without gradients or never trained on."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        step, began = self._training.threads.step, event.began
        epoch = None if began is None else began.notes.get(self)
        batches, start = step.batches, step.start
        is_begun = step.state is BEGUN
        if is_begun and not step.is_trained():
            step.state, start.has_random, is_begun = EVALUATED, False, False  # an evaluation with gradients
        if not is_begun:
            if step.state is EVALUATED or not batches.are_loaded:
                batches.restart()
                step.state = BETWEEN
            start.root_calls, start.root = [], None
            step.buffers.is_kept = False
            if not start.had_forward:
                start.keep_random()
            step.armed = True
        if batches.are_loaded and not is_begun and epoch is start.epoch:
            batches.is_ahead = True
        batches.are_loaded = True
        start.epoch = epoch
        record = batches.add("loader", event.batch, epoch)
        if record is not None:
            record.random = start.handover_random.keep()
            if not is_begun:
                start.fetch_random = record.random
            record.indices = event.indices

    def _pass_of(self, event: events.LoaderExhausted) -> LoaderPass | None:
        return None if event.began is None else event.began.notes.get(self)


class LossChecks:
    """Tests losses and outputs, and gradients before clipping or a GradScaler changes them."""

    def __init__(self, training: CaptureContext, checks: StepChecks, policy: CapturePolicy) -> None:
        self._training, self._checks, self._policy = training, checks, policy
        self._watched = training.watched
        self._ranks = training.ranks

    def output_computed(self, event: events.OutputComputed) -> None:
        """Check a module's output in the forward pass of a step."""
        step = self._training.threads.step
        if step.is_begun and self._training.torch.is_grad_enabled():
            self._checks.check_output(step.findings, event.module, event.output)

    # Backward passes

    def backward_began(self, event: events.BackwardBegan) -> None:
        """Check the loss that backward() is called on, and remember it."""
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
            self._checks.check_loss(step, loss, event.number)
        if self._ranks.groups(self._training.torch) and self._ranks.are_several:
            self._ranks.watch(self._watched.parameters())
            self._mark_for_ranks(step, tensors)
        if findings.triggers and len(self._watched.records) > 1:
            findings.loss_parameters = {id(node.variable) for node in _nodes(tensors) if hasattr(node, "variable")}
        if not (step.batches.are_loaded or step.batches.earlier or step.update.in_closure):
            target = _loss_target(tensors)
            if target is not None:
                step.batches.add("loss", {"target": target[1]}, target[0])

    def _mark_for_ranks(self, step: TrainingStep, tensors: Any) -> None:
        """Mark the coming gradients with findings that other ranks could not see in them."""
        findings, marks = step.findings, self._ranks.marks
        if findings.triggers:
            marks.mark_gradients(findings.triggers[0], self._training.parameters().values())
        elif (findings.device_losses or findings.device_counts) and hasattr(tensors, "register_hook"):
            marks.mark_from_device(tensors, self._checks.signals(findings, with_limit=True))

    def backward_ended(self, event: events.BackwardEnded) -> None:
        """Count a backward pass, and act at once on a bad loss, or on gradients that compiled code will apply."""
        step = self._training.threads.step
        if event.has_failed:
            return
        step.backward_count += 1
        step.start.root = None
        if step.findings.triggers or step.update.is_compiled:
            self._judge(step)
        step.armed = step.armed or (step.state is BEGUN and not step.update.in_closure)  # it may go on with a batch

    def _judge(self, step: TrainingStep) -> None:
        findings, update = step.findings, step.update
        if update.in_closure or not self._watched.records:
            return
        if update.is_compiled and not findings.triggers:
            self.test_compiled(step)
        if update.is_refused:
            findings.triggers = []  # the step is refused already, so its other backward passes do not matter
        if findings.triggers and self._ranks.have_reduced(step.start.origin[1]):
            records = self._watched.due(findings.loss_parameters, step.backward_count)
            triggers = findings.triggers + self._training.triggers(GRADIENT, records)
            is_refused = self._policy.alarm(step, records, triggers)
            for record in self._watched.alive() if update.is_compiled and is_refused else ():
                record.drop_gradients()

    def test_compiled(self, step: TrainingStep) -> None:
        """Test gradients that compiled code may be about to apply."""
        step.update.tested_after = step.backward_count
        if not step.losses.is_scaled:
            records = self._watched.with_gradients()
            step.findings.triggers += self._checks.update_triggers(step, records, is_scaled=False)

    # Clipping

    def clipping_due(self, event: events.ClippingDue) -> str | None:
        """Test gradients before clipping spreads a non-finite value to all of them."""
        step = self._training.threads.step
        is_tested = self._watched.records and self._training.is_testing
        if not is_tested or step.losses.is_scaled:  # a GradScaler detects overflows itself
            return None
        return SKIP if step.findings.skipped or self._refuses_clipping(step, event) else None

    def _refuses_clipping(self, step: TrainingStep, event: events.ClippingDue) -> bool:
        parameters, findings = event.parameters, step.findings
        parameters = [parameters] if hasattr(parameters, "data_ptr") else parameters
        gradients = [gradient for gradient in [parameter.grad for parameter in parameters] if gradient is not None]
        clipped = set(map(id, parameters))
        records = [record for record in self._watched.alive() if any(id(p) in clipped for p in record.parameters())]
        if not gradients or not records:
            return False
        if self._training.tests.are_finite([*gradients, *self._checks.signals(findings)]):
            event.state = gradients, set(map(id, records))
            return False
        findings.triggers += self._checks.device_triggers(findings) + self._training.triggers(GRADIENT, records)
        if not findings.triggers or step.update.in_closure:  # the closure's evaluation is checked when it is over
            return False
        return self._policy.alarm(step, records, findings.triggers)

    def gradients_clipped(self, event: events.GradientsClipped) -> None:
        """Remember the clipped gradients as tested, as long as nothing changes them."""
        if event.due.state is not None:
            findings = self._training.threads.step.findings
            findings.note_finite(*event.due.state)
            findings.device_losses, findings.device_counts = [], []

    # GradScalers

    def loss_scaled(self, event: events.LossScaled) -> None:
        """Check a loss before a GradScaler scales it."""
        loss = event.loss
        if event.scaled is not loss and hasattr(loss, "data_ptr") and self._watched.records:
            step = self._training.threads.step
            step.losses.is_scaled = True
            self._checks.check_loss(step, loss)

    def scaled_update_ended(self, event: events.ScaledUpdateEnded) -> None:
        """Count overflows, by which a GradScaler finds its scale; raise the alarm if no scale cures them."""
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
        if not has_stepped:  # a bad loss or output looks like an overflow to a GradScaler
            triggers += step.findings.triggers + self._checks.device_triggers(step.findings)
            triggers = triggers or self._ranks.marked_triggers(training.parameters)
        scale_trigger = checks.loss_scale(float(scaler.get_scale()), record.overflows)
        if scale_trigger is not None:
            triggers += [scale_trigger, *training.triggers(GRADIENT, [record])]
        if triggers and training.is_testing:
            self._policy.alarm(step, [record], triggers)
            record.overflows = 0
        if not has_stepped:
            if step.findings.skipped:
                self._policy.restore_buffers(step)
            record.last_backward = step.backward_count
            step.end(record)


class UpdateState:
    """State of one update, from its request to its end."""

    def __init__(self, record: OptimizerSteps) -> None:
        self.record = record
        self.is_tested = False  # the parameters are tested after the update
        self.calls = 0  # of the closure, if there is one
        self.copy: StateCopy | None = None  # of the state before a closure's gradients may have changed it
        self.has_moved = False  # the state may differ from the copy


class UpdateChecks:
    """Tests gradients when an optimizer is about to apply them."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._watched = training.watched
        self._checks = StepChecks(training)
        self._policy = CapturePolicy(training, self._checks)
        self.starts = StepStartListener(training, self._policy)
        self.losses = LossChecks(training, self._checks, self._policy)

    def optimizer_made(self, event: events.OptimizerMade) -> None:
        """Watch a new optimizer."""
        if self._watched.only is None:
            self.watch(event.target)

    def watch(self, optimizer: Any) -> OptimizerSteps:
        """Watch the steps of an optimizer, and return its record."""
        existing = self._watched.records.get(id(optimizer))
        if existing is not None and existing.reference() is optimizer:
            return existing
        record, step = self._watched.add(optimizer), self._training.threads.step
        step.buffers.forget()
        if not step.is_begun:
            step.armed = True
        return record

    # Whole steps

    def update_due(self, event: events.UpdateDue) -> str | None:
        """Answer SKIP if an update must not be made."""
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
        if self._policy.refuses_update(step, record, optimizer):
            self._policy.note_skipped(step, record)
            return SKIP
        state.is_tested = self._training.backs_up(step, record)
        return None

    def update_done(self, event: events.UpdateDone) -> None:
        """Count an update that was made; undo one that made parameters non-finite."""
        state: UpdateState | None = None if event.due is None else event.due.state
        if state is None:
            return
        record = state.record
        if state.calls:
            record.repeats = state.calls > 1 or (record.repeats and record.steps > 0)
        step = self._training.threads.step
        if state.is_tested:
            self._ended(step, record, True)
        else:
            self._policy.note_applied(step, record)

    def _ended(self, step: TrainingStep, record: OptimizerSteps, is_tested: bool) -> None:
        if is_tested and self._policy.undo_if_ruined(step, record):
            self._policy.note_skipped(step, record)
        else:
            self._policy.note_applied(step, record)

    def update_ended(self, event: events.UpdateEnded) -> None:
        """Leave the closure's state when an update ends, even by an exception."""
        if event.due.state is not None:
            self._training.threads.step.update.in_closure = False

    # Closures

    def _due_with_closure(self, step: TrainingStep, state: UpdateState, event: events.UpdateDue) -> str | None:
        """Wrap the closure to test its gradients after each call; on an alarm, restore the state before the update."""
        policy, record, optimizer, closure = self._policy, state.record, event.target, event.closure
        is_own = own_step(type(optimizer))  # it may use gradients that were there before the closure's
        is_due = id(record) in step.findings.skipped or step.backward_count != record.last_backward
        if is_own and is_due and policy.refuses_update(step, record, optimizer):
            policy.note_skipped(step, record)
            record.drop_gradients()
            return SKIP
        state.is_tested = self._training.backs_up(step, record)
        if is_own:  # it may change parameters before it calls the closure
            state.copy, state.has_moved = StateCopy(self._training.torch, [optimizer]), True

        def evaluate() -> Any:
            loss = event.result = closure()
            state.calls += 1
            state.has_moved = state.has_moved or state.calls > 1
            if self._training.capture.attempt(self._refuses_evaluation, step, state, optimizer):
                policy.note_skipped(step, record)
                raise NotApplied
            return loss

        step.update.in_closure, event.closure = True, evaluate
        return None

    def _refuses_evaluation(self, step: TrainingStep, state: UpdateState, optimizer: Any) -> bool:
        """Return whether the gradients of a closure's evaluation must not be applied."""
        records = [state.record]
        triggers = step.findings.triggers + self._checks.update_triggers(step, records, is_scaled=False)
        if not triggers:
            if state.record.repeats and state.copy is None:
                state.copy = StateCopy(self._training.torch, [optimizer])
            return False
        is_restored = state.has_moved and state.copy is not None
        if is_restored and state.copy is not None:
            state.copy.restore()
        triggers = [trigger.with_(evaluation=state.calls) for trigger in triggers]
        return self._policy.alarm(step, records, triggers, is_restored)

    # Steps of several parts

    def part_due(self, event: events.PartDue) -> str | None:
        """Answer SKIP if a part of a step must not be made."""
        step, record = self._training.threads.step, self._watched.records.get(id(event.target))
        if record is None:
            return None
        if self._refuses_part(step, record, event):
            record.drop_gradients()  # as the part itself does, if it is called with zero_grad=True
            return SKIP
        event.state = record, step.update.phase
        return None

    def _refuses_part(self, step: TrainingStep, record: OptimizerSteps, event: events.PartDue) -> bool:
        update, optimizer = step.update, event.target
        if update.phase is None or update.phase.first == event.name:
            if update.is_refused:
                self._end_phase(step, record)
            is_refused = self._policy.refuses_update(step, record, optimizer)
            copy = None if is_refused else StateCopy(self._training.torch, [optimizer])
            update.phase = PartialUpdate(event.name, copy)
            return is_refused
        is_refused = update.is_refused or self._policy.refuses_update(step, record, optimizer)
        if is_refused:
            self._end_phase(step, record)
        return is_refused

    def _end_phase(self, step: TrainingStep, record: OptimizerSteps) -> None:
        """End a refused step, and those of the optimizers within it."""
        self._policy.note_skipped(step, record)
        step.findings.skipped = set()

    def part_done(self, event: events.PartDone) -> None:
        """Count the step when a part that is not its first was made, by it or by an optimizer within it."""
        if event.due.state is None:
            return
        (record, phase), step = event.due.state, self._training.threads.step
        if phase is None or phase.first == event.due.name:
            return
        if step.update.phase is not None:
            self._policy.note_applied(step, record)
        else:
            record.stepped(step.backward_count)
            self._training.note_step()

    # Compiled functions, in which no hook sees an optimizer apply gradients

    def forward_began(self, event: events.ForwardBegan) -> None:
        """Handle a module's or compiled function's call; a compiled function may contain an optimizer's step."""
        self.starts.forward_began(event)
        if event.is_compiled:
            self._compiled_began(event)

    def _compiled_began(self, event: events.ForwardBegan) -> None:
        step, watched, findings = self._training.threads.step, self._watched, self._training.threads.step.findings
        step.update.is_compiled = True
        step.armed = step.armed and not self._training.torch.is_grad_enabled()
        if event.module is not None:
            return
        if step.backward_count != step.update.tested_after and not findings.skipped:
            self.losses.test_compiled(step)
            if findings.triggers:
                self._policy.alarm(step, watched.due(findings.loss_parameters, step.backward_count), findings.triggers)
        for record in watched.alive() if findings.skipped else ():
            record.drop_gradients()
        tested = {id(record) for record in watched.alive() if self._training.backs_up(step, record)}
        event.state = watched.steps, watched.versions(), tested

    def compiled_ended(self, event: events.ForwardEnded) -> None:
        """Handle the end of a compiled function: find out whether it updated, and test its updates."""
        if not event.began.is_compiled:
            return
        step, watched, state = self._training.threads.step, self._watched, event.began.state
        step.update.is_compiled = False
        if state is None or state[0] != watched.steps:
            return
        is_refused, has_moved = bool(step.findings.skipped), state[1] != watched.versions()
        for record in watched.alive():
            if is_refused:
                self._policy.note_skipped(step, record)
            elif has_moved:  # its step was compiled
                self._ended(step, record, id(record) in state[2])


def _nodes(tensors: Any) -> Iterator[Any]:
    """Yield the nodes of the autograd graph of one or several losses, the last first."""
    queue = [getattr(tensor, "grad_fn", None) for tensor in ([tensors] if hasattr(tensors, "grad_fn") else tensors)]
    seen: set[Any] = set()
    for node in queue:  # which grows
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue += [following for following, _ in node.next_functions]


def _loss_target(loss: Any) -> tuple[str, Any] | None:
    """Return the loss's target, if its graph saved one: the name of the node, and the target."""
    for node in islice(_nodes(loss), MAX_NODES):
        target = getattr(node, "_saved_target", None)
        if target is not None:
            return node.name(), target
    return None
