"""Compares the states of the random generators at the end of each process."""

from __future__ import annotations

from reprokit.difference import Difference, group, information
from reprokit.verify.match import Matched, Pair, Raw
from reprokit.verify.processes import helper_cut_short
from reprokit.verify.words import Point, Wording, leaf


def compare(matched: Matched) -> Difference:
    """One leaf a generator and process."""
    return group("random states", tuple(_state(matched, pair) for pair in matched.of("random_state")))


def _state(matched: Matched, pair: Pair) -> Difference:
    result = leaf(pair, _WORDING)
    one_sided = pair.left is None or pair.right is None
    if one_sided and helper_cut_short(pair.key.process, *matched.process(pair.key.process)):
        meaning = "the helper process was stopped in one run before it could record it"
        return information(result.name, result.left, result.right, meaning)
    return result


def _point(left: Raw, right: Raw, position: int) -> Point:
    return Point("the end", left["digest"], right["digest"])


_WORDING = Wording("random state", "digest", _point, lambda line, position: "the end", lambda line: str(line["digest"]))
