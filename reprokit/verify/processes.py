"""Compares which Python processes a run had, whether each ended, and whether all its lines are there."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.difference import Difference, Verdict, compared, group, information, missing
from reprokit.verify.match import Matched
from reprokit.verify.scan import Process, natural


def compare(matched: Matched) -> Difference:
    """Every process that recorded anything, by its identity."""
    names = sorted({*matched.left.processes, *matched.right.processes}, key=natural)
    children = tuple(leaf for name in names for leaf in _process(name, *matched.process(name)))
    return group("processes", children)


def _process(name: str, left: Process | None, right: Process | None) -> Iterator[Difference]:
    title = f"process {name}"
    if left is None or right is None:
        yield missing(title, _state(left), _state(right))
        return
    if not (left.whole and right.whole):
        meaning = "lines of its record are missing or twice there: a full disk, or damage"
        yield Difference(title, Verdict.MISSING, _lost(left), _lost(right), meaning)
    if left.ended == right.ended:
        yield Difference(title, Verdict.IDENTICAL, _state(left), _state(right))
    elif left.outcomes or right.outcomes or not _is_helper(name):
        yield compared(title, _state(left), _state(right), "only one of the two came to its normal end")
    else:
        meaning = "a helper that recorded no metric and was stopped in one run before it could say good-bye"
        yield information(title, _state(left), _state(right), meaning)


def _is_helper(name: str) -> bool:
    """Whether it is somebody's child: neither the command itself nor a rank."""
    return "/" in name


def _state(process: Process | None) -> str:
    if process is None:
        return ""
    return "ended normally" if process.ended else "did not end normally"


def _lost(process: Process) -> str:
    if process.whole:
        return f"{process.count} lines"
    return f"{process.count} lines, {process.lost} lost" if process.lost else f"{process.count} lines, wrongly numbered"


def helper_cut_short(name: str, left: Process | None, right: Process | None) -> bool:
    """Whether a child without any metric was stopped before it told its last, in one of the runs."""
    if not _is_helper(name):
        return False
    both = [process for process in (left, right) if process is not None]
    return len(both) == 2 and not any(process.outcomes for process in both) and both[0].ended != both[1].ended
