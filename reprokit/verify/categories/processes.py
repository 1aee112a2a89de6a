"""Compares the Python processes of two runs, how each ended, and whether its lines are complete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reprokit.core.difference import Difference, Role, Side, Verdict, compared, group, information, missing
from reprokit.verify.categories.match import RunPair, SeriesPair
from reprokit.verify.read.scan import MetricsScan, ScannedProcess, natural


def compare(runs: RunPair) -> Difference:
    """Compare every process that recorded anything, by its identity."""
    names = sorted({*runs.left.processes, *runs.right.processes}, key=natural)
    children = tuple(leaf for name in names for leaf in _process(name, *runs.process(name)))
    return group("processes", children)


def _process(name: str, left: ScannedProcess | None, right: ScannedProcess | None) -> Iterator[Difference]:
    title = f"process {name}"
    if left is None or right is None:
        yield missing(title, _state(left), _state(right))
        return
    if not (left.whole and right.whole):
        meaning = "lines of its record are missing or twice there: a full disk, or damage"
        yield Difference(title, Verdict.MISSING, _lost(left), _lost(right), meaning)
    if _ended_alike(left, right):
        yield Difference(title, Verdict.IDENTICAL, _state(left), _state(right))
    elif left.death and right.death:
        yield compared(title, _state(left), _state(right), "another signal ended it")
    elif (side := ended_in_one(name, left, right)) is not None:
        meaning = f"it ended early in the {side} run"
        yield replace(compared(title, _state(left), _state(right), meaning), role=Role.END)
    else:
        meaning = "a helper that was stopped in one run before it could say good-bye"
        yield information(title, _state(left), _state(right), meaning)


def ended_in_one(name: str, left: ScannedProcess | None, right: ScannedProcess | None) -> Side | None:
    """Return the run in which a process ended early that finished in the other; None for helpers."""
    if left is None or right is None or _ended_alike(left, right) or (left.death and right.death):
        return None
    is_left = right.ended if left.ended != right.ended else bool(left.death)
    if is_cut_short(name, left if is_left else right, right if is_left else left):
        return None
    return "left" if is_left else "right"


def _ended_alike(left: ScannedProcess, right: ScannedProcess) -> bool:
    """Return whether both came to their own end, or the same signal ended both; unknown ones are not compared."""
    if left.was_stopped and right.was_stopped:
        return True
    if left.ended != right.ended:
        return False
    return left.death == right.death or not (left.ended or (left.death and right.death))


def _state(process: ScannedProcess | None) -> str:
    if process is None:
        return ""
    if process.was_stopped:
        return "was ended by another process of the run"
    if process.killed_by:
        return f"was killed by {process.killed_by}"
    return "ended by itself" if process.ended else "did not end normally"


def killed_helpers(scan: MetricsScan) -> Iterator[str]:
    """Yield each child process that a signal ended which no process of the run had sent."""
    for name, process in sorted(scan.processes.items(), key=lambda item: natural(item[0])):
        if process.death and "/" in name:
            yield f"process {name} {_state(process)}"


def _lost(process: ScannedProcess) -> str:
    if process.whole:
        return f"{process.recorded} lines"
    how = f"{process.lost} lost" if process.lost else "wrongly numbered"
    return f"{process.recorded} lines, {how}"


def is_cut_short(name: str, process: ScannedProcess | None, other: ScannedProcess | None) -> bool:
    """Return whether a helper lacks its last lines because something of its run stopped it.

    A helper is a child process: neither the command itself nor a rank. A rank counts if its run stopped it in both, as
    launchers do once another rank has died. Without recorded metrics, any process may have stopped a helper.
    """
    if process is None or other is None or process.ended:
        return False
    if "/" not in name:
        return process.was_stopped and other.was_stopped
    return process.was_stopped or (other.ended and not (process.outcomes or other.outcomes))


def stopped_side(runs: RunPair, pair: SeriesPair) -> Side | None:
    """Return the side that lacks lines of the other, as its process was stopped before writing them."""
    left, right = runs.process(pair.key.process)
    process, other = (left, right) if pair.shorter == "left" else (right, left)
    return pair.shorter if is_cut_short(pair.key.process, process, other) else None


def marked_if_stopped(runs: RunPair, pair: SeriesPair, result: Difference) -> Difference:
    """Return the leaf, marked as not compared if one side's process was stopped before."""
    side = stopped_side(runs, pair)
    if side is None:
        return result
    meaning = f"not compared: process {pair.key.process} of the {side} run was stopped before it recorded it"
    return Difference(result.name, Verdict.NOT_RECORDED, result.left, result.right, meaning)


def stopped(runs: RunPair) -> Iterator[str]:
    """Yield notes on processes whose ends are not compared."""
    for side, scan, others in (("left", runs.left, runs.right), ("right", runs.right, runs.left)):
        for name, process in sorted(scan.processes.items(), key=lambda item: natural(item[0])):
            other = others.processes.get(name)
            if process.was_stopped and other is not None and other.outcomes and is_cut_short(name, process, other):
                records = (
                    f"what process {name} of the {side} run would have recorded at its end (weights, imported code)"
                )
                yield f"not compared: {records}, as another process of the run ended it before"
