"""A question put to a replay: which steps are watched, and what of them is kept beside the run's own records."""

from __future__ import annotations

import msgspec


class StepRange(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a training, both ends included: step n is under way once some optimizer has made n updates."""

    first: int = 0
    last: int | None = None  # None: to the end


class KeptOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator whose calls at a place of the user's code are kept whole."""

    operator: str
    place: tuple[str, int] | tuple[()]  # file and line; none: where no code of the user's is


class OperatorQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Each call of an operator is logged, with digests of its inputs and outputs."""

    keep: KeptOperator | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a replay answer; it stands in plan.json as it is."""

    steps: StepRange = StepRange()
    to_end: bool = False  # the replay goes on when these steps are over
    operators: OperatorQuestion | None = None
