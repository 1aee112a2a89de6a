"""A question put to a replay: which steps are watched, and what of them is kept beside the run's own records."""

from __future__ import annotations

import msgspec


class StepRange(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a training, both ends included: step n is under way once some optimizer has made n updates."""

    first: int = 0
    last: int | None = None  # None: to the end


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a replay answer; it stands in plan.json as it is."""

    steps: StepRange = StepRange()
