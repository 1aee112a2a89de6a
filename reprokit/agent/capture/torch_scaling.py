"""GradScalers: an overflow that they see is no alarm, one that no scale cures is."""

from __future__ import annotations

from ..pytorch import private_api
from . import checks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events import LossScaled, ScaledUpdateEnded
    from .torch_alarms import Alarms
    from .torch_checks import StepChecks
    from .torch_held import TrainingStep
    from .torch_steps import StepEnds
    from .torch_training import Training
    from .torch_watched import OptimizerSteps
    from .trigger import Trigger

SCALE_EACH = 32  # steps of which one looks at the scale of a fused optimizer, which skips by itself


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
