"""Checks the numbers of a step of any framework: pure functions from gradients and losses to a Trigger."""

from __future__ import annotations

from .header import CONDITION, GRADIENT, Trigger
from .header import LOSS as OF_LOSS
from .settings import ASKED, GRADIENT_JUMP, GRADIENT_SCALE, JUMP, LOSS, LOSS_ABOVE, OTHER_RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WARM = 10  # steps after which the mean of the norms is compared with
MEMORY = 0.95  # weight of the past in the running mean
SMALLEST_SCALE = 2.0**-10  # of a loss: below it, gradients overflow even without a scale
MAX_OVERFLOWS = 64  # in a row


def elements(kind: str, name: str, count: int, of: int) -> Trigger | None:
    """Return a trigger if any of a tensor's elements is not finite."""
    return Trigger(kind, "not finite", name=name, count=count, of=of) if count else None


def loss(value: float, above: float | None = None) -> Trigger | None:
    """Return a trigger if a loss is not finite, or above a limit."""
    if value - value != 0:
        return Trigger(OF_LOSS, str(value))
    if above is not None and value > above:
        return _beyond(LOSS_ABOVE, f"{LOSS}{above:g}", above, value)
    return None


class NormMean:
    """The running mean of the norms of gradients, over applied steps."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.count = 0

    def add(self, norm: float) -> None:
        """Add the norm of a step that was applied."""
        self.mean = norm if not self.count else MEMORY * self.mean + (1 - MEMORY) * norm
        self.count += 1


def jump(norm: float, factor: float, mean: float) -> Trigger | None:
    """Return a trigger if the norm of all gradients is beyond ``factor`` times its mean."""
    return jump_trigger(norm, factor, mean) if norm > factor * mean else None


def jump_trigger(norm: float, factor: float, mean: float) -> Trigger:
    """Return the trigger for a norm that is known to be beyond ``factor`` times its mean."""
    return _beyond(GRADIENT_JUMP, f"{JUMP}{factor:g}", factor * mean, norm)


def loss_scale(scale: float, overflows: int) -> Trigger | None:
    """Return a trigger if a loss's scale is too small, or too many overflows came in a row."""
    if scale >= SMALLEST_SCALE and overflows < MAX_OVERFLOWS:
        return None
    what = f"the scale of the gradients has fallen to {scale:.3g}, after {overflows} overflows in a row"
    return _beyond(GRADIENT_SCALE, what, SMALLEST_SCALE, scale)


def other_rank(rank: int, what: str) -> Trigger:
    """Return the trigger for a problem that another rank reported."""
    return Trigger(CONDITION, f"{what} on rank {rank}", OTHER_RANK, rank=rank)


def asked() -> Trigger:
    """Return the trigger of a step whose snapshot was asked for, and in which nothing was wrong."""
    return Trigger(CONDITION, "asked for; nothing was found wrong in the step", ASKED)


def _beyond(condition: str, what: str, limit: float, value: float) -> Trigger:
    return Trigger(CONDITION, what, condition, limit=limit, value=value)


def matching_trigger(
    captured: Trigger, seen: Sequence[Trigger], loss: float | None, norm: float | None
) -> Trigger | None:
    """Return the trigger by which a captured one is seen again: of its kind, and preferably of its name."""
    if captured.condition == ASKED:
        return captured
    if captured.kind == CONDITION and captured.condition != GRADIENT_SCALE:
        value = {LOSS_ABOVE: loss, GRADIENT_JUMP: norm}.get(captured.condition)
        is_beyond = value is not None and captured.limit is not None and not value <= captured.limit
        return captured.with_(value=value) if is_beyond else None
    kind = GRADIENT if captured.kind == CONDITION else captured.kind
    same = [trigger for trigger in seen if trigger.kind == kind]
    return next((trigger for trigger in same if trigger.name == captured.name), same[0] if same else None)
