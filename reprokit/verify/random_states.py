"""Compares the states of the random generators at the end of each process."""

from __future__ import annotations

from reprokit.difference import Difference, group
from reprokit.verify.match import Matched, Pair, Raw
from reprokit.verify.processes import not_told
from reprokit.verify.words import Point, Wording, leaf


def compare(matched: Matched) -> Difference:
    """One leaf a generator and process."""
    return group("random states", tuple(_state(matched, pair) for pair in matched.of("random_state")))


def _state(matched: Matched, pair: Pair) -> Difference:
    return not_told(matched, pair, leaf(pair, _WORDING))


def _point(left: Raw, right: Raw, position: int) -> Point:
    return Point("the end", left["digest"], right["digest"])


_WORDING = Wording("random state", "digest", _point, lambda line, position: "the end", lambda line: str(line["digest"]))
