"""Losses that backward() is called of, how GradScalers scale them, and gradients that are clipped after it.

An overflow that a GradScaler sees is no alarm, one that no scale cures is.
"""

from __future__ import annotations

from ..events import SKIP
from ..pytorch import private_api
from . import checks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import (
        BackwardBegan,
        BackwardEnded,
        ClippingDue,
        GradientsClipped,
        LossScaled,
        OutputComputed,
        ScaledUpdateEnded,
    )
    from .torch_steps import TrainingStep
    from .torch_training import Training

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

    def output_computed(self, event: OutputComputed) -> None:
        """Judge what a module gave in the forward pass of a step."""
        held = self._training.threads.held
        if held.is_begun and self._training.torch.is_grad_enabled():
            self._checks.of_output(held.findings, event.module, event.output)

    # Backward passes

    def backward_began(self, event: BackwardBegan) -> None:
        """See what backward() is called of."""
        if not self._watched.records:
            return
        held, tensors = self._training.threads.held, event.tensors
        seen = held.findings
        seen.clean = {}
        loss = tensors if hasattr(tensors, "data_ptr") else next(iter(tensors), None)
        if loss is None or loss.numel() == 0:
            return
        held.losses.of_step = loss.detach()
        if not held.losses.is_scaled:  # with what a GradScaler multiplies, it may well overflow
            self._checks.of_loss(held, loss)
        if self._ranks.are_several:
            self._ranks.watch(self._watched.parameters())
            self._tell_ranks(held, tensors)
        if seen.triggers and len(self._watched.records) > 1:
            seen.reached = _graph_parameters(tensors)
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

    def backward_ended(self, event: BackwardEnded) -> None:
        """A backward pass is over; what it was called of, or compiled code will apply, is judged at once."""
        held = self._training.threads.held
        if event.has_failed:
            return
        held.round += 1
        held.start.root = None
        if self._watched.records and not held.update.in_closure:
            self._judge(held)
        held.rearm()

    def _judge(self, held: TrainingStep) -> None:
        seen, update = held.findings, held.update
        if update.is_compiled and not seen.triggers:
            self.test_compiled(held)
        if update.is_refused:
            seen.triggers = []  # the step is refused already, and its other backward passes are nobody's
        if seen.triggers and self._ranks.have_heard(held.start.began_at[1]):
            records = self._watched.due(seen.reached, held.round)
            self._policy.alarm(held, records, seen.triggers + self._training.gradient_triggers(records))
            for record in self._watched.alive() if update.is_compiled else ():
                record.drop_gradients()

    def test_compiled(self, held: TrainingStep) -> None:
        """Gradients that compiled code is about to apply, perhaps."""
        held.update.tested = held.round
        if not held.losses.is_scaled:
            records = self._watched.with_gradients()
            held.findings.triggers += self._checks.of_update(held, records, is_scaled=False)

    # Clipping

    def clipping_due(self, event: ClippingDue) -> str | None:
        """Test gradients before clipping spreads what is not finite to all of them."""
        held = self._training.threads.held
        if not self._watched.records or held.losses.is_scaled:  # a GradScaler has found out by itself
            return None
        return SKIP if held.findings.skipped or self._refuses_clipping(held, event) else None

    def _refuses_clipping(self, held: TrainingStep, event: ClippingDue) -> bool:
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
        seen.triggers += self._checks.on_devices(seen) + self._training.gradient_triggers(records)
        if not seen.triggers or held.update.in_closure:  # whose evaluation is judged when it is over
            return False
        self._policy.alarm(held, records, seen.triggers)
        return True

    def gradients_clipped(self, event: GradientsClipped) -> None:
        """Remember that these were tested, as long as nothing changes them."""
        if event.due.state is not None:
            seen = self._training.threads.held.findings
            seen.note_clean(*event.due.state)
            seen.far, seen.counts = [], []

    # GradScalers

    def loss_scaled(self, event: LossScaled) -> None:
        """See a loss before it is scaled."""
        loss = event.loss
        if event.scaled is not loss and hasattr(loss, "data_ptr") and self._watched.records:
            held = self._training.threads.held
            held.losses.is_scaled = True
            self._checks.of_loss(held, loss)

    def scaled_update_ended(self, event: ScaledUpdateEnded) -> None:
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
            triggers += [found, *training.gradient_triggers([record])]
        if triggers:
            self._policy.alarm(held, [record], triggers)
            record.overflows = 0
        if not has_stepped:
            if held.findings.skipped:
                self._policy.put_buffers_back(held)
            record.round = held.round
            held.end(record)


def _graph_parameters(loss: Any) -> set[int]:
    """Return the ids of the leaves that a loss was computed from."""
    waiting = [getattr(one, "grad_fn", None) for one in ([loss] if hasattr(loss, "grad_fn") else loss)]
    seen: set[Any] = set()
    found: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return found


def _loss_target(loss: Any) -> tuple[str, Any] | None:
    """What a loss was computed against, where its graph says so: the name of its node, and the target."""
    waiting = [getattr(loss, "grad_fn", None)]
    for _ in range(MAX_NODES):
        node = waiting.pop(0) if waiting else None
        if node is None:
            break
        target = getattr(node, "_saved_target", None)
        if target is not None:
            return node.name(), target
        waiting += [following for following, _ in node.next_functions if following is not None]
    return None
