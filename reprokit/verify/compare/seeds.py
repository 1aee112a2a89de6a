"""Compares the seeding calls of each process: their functions and arguments, in order."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.difference import Difference, group, information
from reprokit.verify.compare.match import Raw, RunPair
from reprokit.verify.compare.processes import not_told
from reprokit.verify.compare.series_leaves import LineWording, counted, leaf
from reprokit.verify.read.normalization import ADDRESSES, SEED_LINES
from reprokit.verify.read.scan import MetricsScan, ReplacedSeeds, natural


def compare(runs: RunPair) -> Difference:
    """One leaf a thread that seeds, and one a process in which a replay gave recorded seeds."""
    pairs = list(runs.of("seed"))
    for one, other in [(pair.left, pair.right) for pair in pairs if pair.same]:
        if one is not None and other is not None:
            runs.normalizations.ignore(SEED_LINES, one.places, other.places)
            runs.normalizations.ignore(ADDRESSES, one.arguments, other.arguments)
    wording = LineWording("seeds", "call", _place, _call)
    leaves = [not_told(runs, pair, leaf(pair, wording)) for pair in pairs]
    if runs.left.all_seeds == runs.right.all_seeds:
        leaves = [_elsewhere(found) if found.verdict.differs else found for found in leaves]
    return group("seeds", (*leaves, *_replaced(runs)))


def _elsewhere(found: Difference) -> Difference:
    """Of a pool, any worker may take any task and its seed."""
    meaning = "the runs have the same seeds, in another order or taken by other threads or processes"
    return information(found.name, found.left, found.right, meaning)


def _replaced(runs: RunPair) -> Iterator[Difference]:
    left, right = runs.left.replaced, runs.right.replaced
    for process in sorted({*left, *right}, key=natural):
        sides = left.get(process), right.get(process)
        first = next(side for side in sides if side is not None)
        texts = [counted(side.count, "seed") if side is not None else "none" for side in sides]
        yield information(f"seeds replaced in process {process}", texts[0], texts[1], in_words(first))


def in_words(replaced: ReplacedSeeds) -> str:
    """Return the first seed of a process that was given the recorded value."""
    first = replaced.first
    return f"{first.where}: {first.call}: recorded {first.argument}, asked for {first.asked}"


def summary(scan: MetricsScan) -> Iterator[str]:
    """Yield a line for each process of a replay in which seeds were given the recorded value."""
    for process in sorted(scan.replaced, key=natural):
        found = scan.replaced[process]
        count = counted(found.count, "seed")
        yield f"process {process}: {count} replaced by the recorded, first {in_words(found)}"


def _call(line: Raw) -> str:
    return f"{line['call']}({line['argument']})"


def _place(line: Raw, position: int) -> str:
    place = f" ({line['where']})" if line.get("where") else ""
    return f"call {position + 1}{place}"
