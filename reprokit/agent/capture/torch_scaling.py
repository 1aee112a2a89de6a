"""GradScalers: an overflow that they see is no alarm, one that no scale cures is."""

from __future__ import annotations

from . import checks
from .torch_held import Held
from .torch_losses import Losses
from .torch_watched import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .trigger import Trigger

    Function = Callable[..., Any]

SCALE_EACH = 32  # steps of which one looks at the scale of a fused optimizer, which skips by itself


class Scaling(Losses):
    """Watches how GradScalers fare."""

    def _make_scale(self, original: Function) -> Function:
        is_compiling, attempt, judge = self._is_compiling, self._capture.attempt, self._judge

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaled is not outputs and hasattr(outputs, "data_ptr") and not is_compiling() and self._watched.records:
                held = self._threads.held
                held.is_scaled = True
                attempt(judge, held, outputs)
            return scaled

        return scale

    def _make_scaler_step(self, original: Function) -> Function:
        attempt, after = self._capture.attempt, self._after_scaler

        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            record = self._watched.records.get(id(optimizer))
            before = -1 if record is None else record.steps
            result = original(scaler, optimizer, *arguments, **keywords)
            if record is not None:
                attempt(after, scaler, record, before)
            return result

        return step

    def _after_scaler(self, scaler: Any, record: Record, before: int) -> None:
        """Overflows are how a GradScaler finds its scale; that it finds none is an alarm."""
        if not getattr(scaler, "_enabled", True):
            return
        held, has_stepped = self._threads.held, record.steps != before
        if has_stepped:
            record.overflows = 0
            optimizer = record.reference()
            if not getattr(optimizer, "_step_supports_amp_scaling", False) or record.steps % SCALE_EACH:
                return
        record.overflows += not has_stepped
        triggers = [] if has_stepped else self._untold(held)
        found = checks.loss_scale(float(scaler.get_scale()), record.overflows)
        if found is not None:
            triggers += [found, *self._snapshooter.gradient_triggers(self._models(), [record])]
        if triggers:
            self._alarm(held, [record], triggers)
            record.overflows = 0
        if not has_stepped:
            self._skipped_by_scaler(held, record)

    def _untold(self, held: Held) -> list[Trigger]:
        """What is no overflow, though it looks like one to a GradScaler."""
        return held.triggers + self._far_triggers(held) or self._ranks.told(self._parameters)

    def _skipped_by_scaler(self, held: Held, record: Record) -> None:
        if held.skipped:
            self._put_buffers_back(held)
            held.skipped = set()
        record.round = held.round
        self._end(held, record)
