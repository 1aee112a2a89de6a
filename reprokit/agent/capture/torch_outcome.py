"""What a step that was done again came to: its gradients and loss beside those of the snapshot, bit for bit."""

from __future__ import annotations

import math

from .settings import GRADIENT_JUMP, GRADIENT_SCALE, LOSS_ABOVE
from .torch_causes import is_finite, numbers
from .torch_state import digest
from .words import in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FINITE = "everything is finite"
MAX_LISTED = 1000


class Step:
    """What was seen of one step."""

    def __init__(
        self,
        torch: Any,
        losses: list[tuple[Any, Any]],
        gradients: Mapping[str, Any],
        activations: list[Any],
        parameters: list[dict[str, Any]] | None = None,
    ) -> None:
        self._torch = torch
        self.last = losses[-1][0] if losses else None  # given to backward
        self.losses = [loss for _, loss in losses]  # as the script computed them, before any scaling, in order
        self.gradients = gradients  # by name
        self.activations = activations  # names of modules whose output was not finite, with counts
        self.parameters = parameters or []  # names of those that an update made not finite, with counts
        self.bad = [name for name, gradient in gradients.items() if not is_finite(torch, gradient)]

    @property
    def bad_losses(self) -> list[Any]:
        """Those that are not finite."""
        return [loss for loss in self.losses if not is_finite(self._torch, loss)]

    def trigger(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """What of the kind that was captured is seen now."""
        kind = wanted.get("kind")
        if kind == "loss":
            return self._of_loss(wanted)
        if kind == "parameter":
            return None if not self.parameters else {"kind": kind, "what": "not finite", **self.parameters[0]}
        if kind == "gradient" or wanted.get("condition") == GRADIENT_SCALE:
            return self._of_gradient(wanted)
        if kind == "activation":
            names = [found for found in self.activations if found["name"] == wanted.get("name")] or self.activations
            return {"kind": kind, **names[0]} if names else None
        return self._of_condition(wanted)

    def _of_loss(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        if not self.bad_losses:
            return None
        value = numbers(self._torch, self.bad_losses[0]).reshape(-1)
        bad = value[~self._torch.isfinite(value)]
        return {"kind": "loss", "what": str(float(bad[0])), "name": wanted.get("name")}

    def _of_gradient(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        if not self.bad:
            return None
        name = wanted["name"] if wanted.get("name") in self.bad else self.bad[0]
        values = numbers(self._torch, self.gradients[name])
        count = values.numel() - int(self._torch.isfinite(values).sum())
        return {"kind": "gradient", "what": "not finite", "name": name, "count": count, "of": values.numel()}

    def _of_condition(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        limit, values = _number(wanted.get("limit")), []
        if wanted.get("condition") == LOSS_ABOVE:
            values = [float(loss.detach().float().sum()) for loss in self.losses]
        elif wanted.get("condition") == GRADIENT_JUMP:
            values = [self.norm()]
        above = [value for value in values if limit is not None and not value <= limit]
        same = {key: wanted.get(key) for key in ("kind", "condition", "what")}
        return {**same, "limit": limit, "value": above[0]} if above else None

    def norm(self) -> float:
        """Of all gradients together."""
        squares = [float(numbers(self._torch, one).double().pow(2).sum()) for one in self.gradients.values()]
        return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan

    def words(self, trigger: Mapping[str, Any] | None) -> str:
        """In a phrase."""
        if trigger is not None:
            return in_words(trigger)
        if self.bad:
            return f"gradient of {self.bad[0]} is not finite"
        return "the loss is not finite" if self.bad_losses else FINITE

    def compared(self, known: Mapping[str, str], bad: Mapping[str, str], lost: Mapping[str, Any]) -> dict[str, Any]:
        """Gradients and loss beside the snapshot's digests, and which gradients were not finite there."""
        equal = [name for name in known if name in self.gradients and digest(self.gradients[name]) == known[name]]
        same = set(equal)
        different = [name for name in dict.fromkeys([*known, *self.gradients]) if name not in same]
        before, last = set(bad), self.last
        return {
            "gradients": {
                "equal": len(equal),
                "different": different[:MAX_LISTED],
                "nonfinite_equal": before == set(self.bad) and before <= same,
            },
            "loss": {
                "value": None if last is None or last.numel() != 1 else str(float(last.detach())),
                "equal": last is not None and digest(last) == lost.get("digest"),
            },
        }


def _number(value: Any) -> float | None:
    """A number of a snapshot, which may be the text of one."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        return float.fromhex(value) if "0x" in value else float(value)
    except (ValueError, OverflowError):
        return None
