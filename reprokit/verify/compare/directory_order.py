"""Compares the order in which directories were listed, which file systems choose."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.difference import Difference, Verdict, information
from reprokit.verify.compare.match import Matched, Raw, SeriesPair

_ORDER = "the same names in another order: what goes through them as they come takes another turn"
_NAMES = "other names were listed"
_HALF = "it was listed to the end in one run only, or as far as another name"


def compare(matched: Matched) -> Iterator[Difference]:
    """One leaf a directory whose listings differ; the others are counted."""
    pairs = list(matched.of("listing"))
    same = sum(pair.same for pair in pairs)
    if same:
        yield Difference("directory listings", Verdict.IDENTICAL, f"{same} the same", f"{same} the same")
    one_sided = [pair.key.name for pair in pairs if pair.left is None or pair.right is None]
    if one_sided:
        words = f"{len(one_sided)}, first {one_sided[0]}"
        yield information("directories listed in one run only", words, "", "what is listed follows from something else")
    yield from dict.fromkeys(_leaf(pair) for pair in pairs if pair.position is not None)


def _leaf(pair: SeriesPair) -> Difference:
    left, right = pair.left_line, pair.right_line
    name = f"listing of {pair.key.name}"
    return information(name, _short(left), _short(right), _meaning(left, right), can_change_results=True)


def _short(line: Raw | None) -> str:
    """A listing in a few words, so that two of them can be told apart."""
    return "not listed again" if line is None else f"{line['count']} names, order {line['order'][:12]}"


def _meaning(left: Raw | None, right: Raw | None) -> str:
    if left is None or right is None:
        return "can change results: it changed while only one of the runs went on"
    if (left["count"], left["names"]) == (right["count"], right["names"]):
        return f"can change results: {_ORDER}"
    return f"can change results: {_NAMES if left['whole'] and right['whole'] else _HALF}"
