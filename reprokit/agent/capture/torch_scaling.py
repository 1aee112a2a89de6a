"""GradScalers: an overflow that they see is no alarm, one that no scale cures is."""

from __future__ import annotations

from . import checks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .torch_alarms import Alarms
    from .torch_checks import StepChecks
    from .torch_held import TrainingStep
    from .torch_steps import StepEnds
    from .torch_training import Training
    from .torch_watched import OptimizerSteps
    from .trigger import Trigger

    Function = Callable[..., Any]

SCALE_EACH = 32  # steps of which one looks at the scale of a fused optimizer, which skips by itself


class Scaling:
    """Watches how GradScalers fare."""

    def __init__(self, training: Training, checks: StepChecks, alarms: Alarms, ends: StepEnds) -> None:
        self._training = training
        self._watched = training.watched
        self._checks = checks
        self._alarms = alarms
        self._ends = ends

    def make_scale(self, original: Function) -> Function:
        """See a loss before it is scaled."""
        is_compiling, attempt, judge = self._training.is_compiling, self._training.capture.attempt, self._checks.of_loss

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaled is not outputs and hasattr(outputs, "data_ptr") and not is_compiling() and self._watched.records:
                held = self._training.threads.held
                held.losses.is_scaled = True
                attempt(judge, held, outputs)
            return scaled

        return scale

    def make_scaler_step(self, original: Function) -> Function:
        """See whether an optimizer has stepped."""
        attempt, after = self._training.capture.attempt, self._after_scaler

        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            record = self._watched.records.get(id(optimizer))
            before = -1 if record is None else record.steps
            result = original(scaler, optimizer, *arguments, **keywords)
            if record is not None:
                attempt(after, scaler, record, before)
            return result

        return step

    def _after_scaler(self, scaler: Any, record: OptimizerSteps, before: int) -> None:
        """Overflows are how a GradScaler finds its scale; that it finds none is an alarm."""
        if not getattr(scaler, "_enabled", True):
            return
        held, has_stepped = self._training.threads.held, record.steps != before
        if has_stepped:
            record.overflows = 0
            optimizer = record.reference()
            if not getattr(optimizer, "_step_supports_amp_scaling", False) or record.steps % SCALE_EACH:
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
