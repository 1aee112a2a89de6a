"""What a step of PyTorch that was done again came to: its gradients, losses and modules' outputs as they are now."""

from __future__ import annotations

import math

from ..pytorch.tensors import is_finite, numbers
from . import checks
from .redo import StepOutcome
from .torch_state import digest
from .trigger import GRADIENT, LOSS, Trigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


def judged(torch: Any, kind: str, name: str, tensor: Any) -> Trigger | None:
    """Judge a tensor by its elements."""
    if is_finite(tensor):
        return None
    values = numbers(tensor)
    return checks.elements(kind, name, values.numel() - int(torch.isfinite(values).sum()), values.numel())


class ExecutedStep:
    """What was seen of one step."""

    def __init__(
        self, torch: Any, losses: list[tuple[Any, Any]], gradients: Mapping[str, Any], others: Iterable[Trigger] = ()
    ) -> None:
        self._torch = torch
        self.last = losses[-1][0] if losses else None  # given to backward
        self.losses = [loss for _, loss in losses]  # as the script computed them, before any scaling, in order
        self.gradients = gradients  # by name
        self.bad_losses = [loss for loss in self.losses if not is_finite(loss)]
        judged_ones = [judged(torch, GRADIENT, name, gradient) for name, gradient in gradients.items()]
        self.not_finite = [one for one in judged_ones if one is not None]
        self.bad = [one.name for one in self.not_finite]
        self.not_finite += [Trigger(LOSS, self._first_bad(loss)) for loss in self.bad_losses]
        self.not_finite += others  # modules' outputs, and parameters that an update made not finite

    def _first_bad(self, loss: Any) -> str:
        value = numbers(loss).reshape(-1)
        return str(float(value[~self._torch.isfinite(value)][0]))

    @property
    def worst_loss(self) -> float | None:
        """The one that is beyond a limit, if any is."""
        values = [float(loss.detach().float().sum()) for loss in self.losses]
        return next((value for value in values if value != value), max(values, default=None))

    def norm(self) -> float:
        """Of all gradients together."""
        squares = [float(numbers(one).double().pow(2).sum()) for one in self.gradients.values()]
        return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan

    def again(self, wanted: Trigger) -> Trigger | None:
        """Return what is there again of what was captured."""
        return checks.seen_again(wanted, self.not_finite, self.worst_loss, self.norm())

    def outcome(self) -> StepOutcome:
        """Return all of it as numbers and digests."""
        last, digests = self.last, {name: digest(gradient) for name, gradient in self.gradients.items()}
        value = None if last is None or last.numel() != 1 else float(last.detach())
        loss = value, "" if last is None else digest(last)
        return StepOutcome(self.not_finite, digests, loss, self.norm(), self.worst_loss)
