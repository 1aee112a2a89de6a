"""Compares the seeding calls of each process: their functions and arguments, in order."""

from __future__ import annotations

from reprokit.difference import Difference, group
from reprokit.verify.match import Matched, Raw
from reprokit.verify.normalise import SEED_LINES, Normalisations
from reprokit.verify.words import Point, Wording, leaf


def compare(matched: Matched, normalisations: Normalisations) -> Difference:
    """One leaf a process that seeds."""
    pairs = list(matched.of("seed"))
    if any(pair.same for pair in pairs):
        normalisations.add(SEED_LINES)
    wording = Wording("seeds", "call", _point, _place, _call)
    return group("seeds", tuple(leaf(pair, wording) for pair in pairs))


def _point(left: Raw, right: Raw, position: int) -> Point:
    return Point(_place(left, position), _call(left), _call(right))


def _call(line: Raw) -> str:
    return f"{line['call']}({line['argument']})"


def _place(line: Raw, position: int) -> str:
    place = f" ({line['where']})" if line.get("where") else ""
    return f"call {position + 1}{place}"
