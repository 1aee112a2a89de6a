"""Losses that backward() is called of, how GradScalers scale them, and gradients that are clipped after it.

An overflow that a GradScaler sees is no alarm, one that no scale cures is.
"""

from __future__ import annotations

from ..events import SKIP
from ..pytorch import private_api
from . import checks
from .torch_training import drop_gradients, graph_parameters, loss_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import (
        BackwardBegan,
        BackwardEnded,
        ClippingDue,
        GradientsClipped,
        LossScaled,
        ScaledUpdateEnded,
    )
    from .torch_alarms import Alarms
    from .torch_checks import StepChecks
    from .torch_held import TrainingStep
    from .torch_steps import StepEnds
    from .torch_training import OptimizerSteps, Training
    from .trigger import Trigger

SCALE_EACH = 32  # steps of which one looks at the scale of a fused optimizer, which skips by itself


class Losses:
    """Tests losses that backward() is called of."""

    def __init__(self, training: Training, checks: StepChecks, alarms: Alarms) -> None:
        self._training = training
        self._watched = training.watched
        self._ranks = training.ranks
        self._checks = checks
        self._alarms = alarms

    def backward_ended(self, event: BackwardEnded) -> None:
        """A backward pass is over."""
        held = self._training.threads.held
        if event.has_failed:
            return
        held.round += 1
        held.start.root = None
        if held.findings.triggers or held.update.is_compiled:
            self._judge(held)
        else:
            held.rearm()

    def backward_began(self, event: BackwardBegan) -> None:
        """See what backward() is called of."""
        if not self._watched.records:
            return
        held, tensors = self._training.threads.held, event.tensors
        seen = held.findings
        if seen.clean:
            seen.clean = {}
        if not self._checks.is_plain_loss(held, tensors):
            loss = tensors if hasattr(tensors, "data_ptr") else next(iter(tensors), None)
            if loss is None or loss.numel() == 0:
                return
            held.losses.of_step = loss.detach()
            if not held.losses.is_scaled:  # with what a GradScaler multiplies, it may well overflow
                self._checks.of_loss(held, loss)
        if self._ranks.are_several:
            self._ranks.watch(self._training.parameters_of_all())
            self._tell_ranks(held, tensors)
        if seen.triggers and len(self._watched.records) > 1:
            seen.reached = graph_parameters(tensors)
        if not (held.batches.are_loaded or held.batches.earlier or held.update.closure):
            target = loss_target(tensors)
            if target is not None:
                held.batches.add("loss", {"target": target[1]}, target[0])

    def _tell_ranks(self, held: TrainingStep, tensors: Any) -> None:
        """What other processes cannot see in the gradients goes with them."""
        seen = held.findings
        if seen.triggers:
            self._ranks.marks.tell(seen.triggers[0], self._training.parameters().values())
        elif (seen.far or seen.counts) and hasattr(tensors, "register_hook"):
            self._ranks.marks.tell_from_device(tensors, self._checks.signals_with_limit(held))

    def _judge(self, held: TrainingStep) -> None:
        seen, update = held.findings, held.update
        if update.closure is not None or not self._watched.records:
            return
        if update.is_compiled and not seen.triggers:
            self.test_compiled(held)
        if update.phase is not None and update.phase.copy is None:
            seen.triggers = []  # the step is refused already, and its other backward passes are nobody's
        if seen.triggers and self._ranks.have_heard(held.start.began_at[1]):
            records = self._alarms.due(held)
            self._alarms.alarm(held, records, seen.triggers + self._training.gradient_triggers(records))
            if update.is_compiled:
                drop_gradients(self._watched.alive())
        held.rearm()

    def test_compiled(self, held: TrainingStep) -> None:
        """Gradients that compiled code is about to apply, perhaps."""
        held.update.tested = held.round
        if not held.losses.is_scaled:
            records = self._alarms.with_gradients()
            held.findings.triggers += self._checks.of_update(held, records, is_scaled=False)


class Clipping:
    """Tests gradients before clipping spreads what is not finite to all of them."""

    def __init__(self, training: Training, checks: StepChecks, alarms: Alarms) -> None:
        self._training = training
        self._watched = training.watched
        self._checks = checks
        self._alarms = alarms

    def clipping_due(self, event: ClippingDue) -> str | None:
        """Look at what is to be clipped."""
        held = self._training.threads.held
        if not self._watched.records:
            return None
        event.state = self._clip(held, event.parameters)
        return SKIP if event.state is None and held.findings.skipped else None

    def gradients_clipped(self, event: GradientsClipped) -> None:
        """Remember that these were tested, as long as nothing changes them."""
        held = self._training.threads.held
        if event.due.state:
            held.findings.note_clean(event.due.state, held.findings.clean_for)
            held.findings.far, held.findings.counts = [], []

    def _clip(self, held: TrainingStep, parameters: Any) -> list[Any] | None:
        """Test gradients before clipping spreads what is not finite to all of them; None where they must go."""
        if held.losses.is_scaled:  # a GradScaler has found out by itself
            return []
        if held.findings.skipped:
            return None
        parameters = [parameters] if hasattr(parameters, "data_ptr") else parameters
        gradients = [gradient for gradient in [parameter.grad for parameter in parameters] if gradient is not None]
        wanted = set(map(id, parameters))
        records = [one for one in self._watched.alive() if any(id(p) in wanted for p in one.parameters())]
        if (
            not gradients
            or not records
            or self._training.gradients.are_finite(self._watched.clipped, gradients, self._checks.signals(held))
        ):
            held.findings.clean_for = set(map(id, records))
            return gradients if records else []
        held.findings.triggers += self._checks.on_devices(held) + self._training.gradient_triggers(records)
        if not held.findings.triggers or held.update.closure is not None:  # whose evaluation is judged when it is over
            return []
        self._alarms.alarm(held, records, held.findings.triggers)
        return None


class Scaling:
    """Watches how GradScalers fare."""

    def __init__(self, training: Training, checks: StepChecks, alarms: Alarms, ends: StepEnds) -> None:
        self._training = training
        self._watched = training.watched
        self._checks = checks
        self._alarms = alarms
        self._ends = ends

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
        held = self._training.threads.held
        if has_stepped:
            record.overflows = 0
            if not private_api.skips_by_itself(event.target) or record.steps % SCALE_EACH:
                return
        record.overflows += not has_stepped
        triggers = [] if has_stepped else self._untold(held)
        found = checks.loss_scale(float(scaler.get_scale()), record.overflows)
        if found is not None:
            triggers += [found, *self._training.gradient_triggers([record])]
        if triggers:
            self._alarms.alarm(held, [record], triggers)
            record.overflows = 0
        if not has_stepped:
            self._skipped_by_scaler(held, record)

    def _untold(self, held: TrainingStep) -> list[Trigger]:
        """What is no overflow, though it looks like one to a GradScaler."""
        return held.findings.triggers + self._checks.on_devices(held) or self._training.ranks.told(
            self._training.parameters
        )

    def _skipped_by_scaler(self, held: TrainingStep, record: OptimizerSteps) -> None:
        if held.findings.skipped:
            self._alarms.put_buffers_back(held)
            held.findings.skipped = set()
        record.round = held.round
        self._ends.end(held, record)
