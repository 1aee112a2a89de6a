"""Judges the numbers of a step, whatever its framework: pure functions from gradients and losses to a Trigger."""

from __future__ import annotations

from .header import CONDITION, GRADIENT, Trigger
from .header import LOSS as OF_LOSS
from .settings import GRADIENT_JUMP, GRADIENT_SCALE, JUMP, LOSS, LOSS_ABOVE, OTHER_RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = 10  # norms of gradients whose mean is worth comparing with
MEMORY = 0.95  # of the running mean
SMALLEST_SCALE = 2.0**-10  # of a loss: with less than that gradients overflow by themselves
MAX_OVERFLOWS = 64  # in a row


def elements(kind: str, name: str, count: int, of: int) -> Trigger | None:
    """Judge a tensor by how many of its elements are not finite."""
    return Trigger(kind, "not finite", name=name, count=count, of=of) if count else None


def loss(value: float, above: float | None = None) -> Trigger | None:
    """Judge a loss, and whether it is beyond a limit."""
    if value - value != 0:
        return Trigger(OF_LOSS, str(value))
    if above is not None and value > above:
        return _beyond(LOSS_ABOVE, f"{LOSS}{above:g}", above, value)
    return None


class NormMean:
    """The running mean of the norms of gradients."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.count = 0

    def add(self, norm: float) -> None:
        """Take in the norm of a step that was applied."""
        self.mean = norm if not self.count else MEMORY * self.mean + (1 - MEMORY) * norm
        self.count += 1


def jump(norm: float, factor: float, mean: float) -> Trigger | None:
    """Judge the norm of all gradients by its mean so far."""
    return jumped(norm, factor, mean) if norm > factor * mean else None


def jumped(norm: float, factor: float, mean: float) -> Trigger:
    """Return the trigger of a norm that was judged elsewhere."""
    return _beyond(GRADIENT_JUMP, f"{JUMP}{factor:g}", factor * mean, norm)


def loss_scale(scale: float, overflows: int) -> Trigger | None:
    """Judge the scale of a loss, which no overflow should make smaller for long."""
    if scale >= SMALLEST_SCALE and overflows < MAX_OVERFLOWS:
        return None
    what = f"the scale of the gradients has fallen to {scale:.3g}, after {overflows} overflows in a row"
    return _beyond(GRADIENT_SCALE, what, SMALLEST_SCALE, scale)


def other_rank(rank: int, what: str) -> Trigger:
    """Return what another process told."""
    return Trigger(CONDITION, f"{what} on rank {rank}", OTHER_RANK, rank=rank)


def _beyond(condition: str, what: str, limit: float, value: float) -> Trigger:
    return Trigger(CONDITION, what, condition, limit=limit, value=value)


def seen_again(wanted: Trigger, seen: Sequence[Trigger], loss: float | None, norm: float | None) -> Trigger | None:
    """Return what is seen now of the kind that was captured: of the same name, else the first."""
    if wanted.kind == CONDITION and wanted.condition != GRADIENT_SCALE:
        value = {LOSS_ABOVE: loss, GRADIENT_JUMP: norm}.get(wanted.condition)
        is_beyond = value is not None and wanted.limit is not None and not value <= wanted.limit
        return wanted.with_(value=value) if is_beyond else None
    kind = GRADIENT if wanted.kind == CONDITION else wanted.kind
    same = [one for one in seen if one.kind == kind]
    return next((one for one in same if one.name == wanted.name), same[0] if same else None)
