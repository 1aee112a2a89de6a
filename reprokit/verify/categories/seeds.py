"""Compares the seeding calls of each process, by function and arguments, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reprokit.core.difference import Difference, group, information
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.match import Raw, RunPair
from reprokit.verify.categories.processes import marked_if_stopped
from reprokit.verify.categories.series_leaves import LineWording, counted, leaf
from reprokit.verify.read.metric_lines import SeedLine
from reprokit.verify.read.normalization import ADDRESSES, SEED_LINES
from reprokit.verify.read.scan import MetricsScan, ReplacedSeeds, natural, read

MAX_CALLS = 50  # distinct calls of a script, and of libraries


def compare(runs: RunPair) -> Difference:
    """Return a leaf for each seeding thread, and one for each process in which a replay replaced seeds."""
    pairs = list(runs.of("seed"))
    for left_series, right_series in [(pair.left, pair.right) for pair in pairs if pair.same]:
        if left_series is not None and right_series is not None:
            runs.normalizations.ignore(SEED_LINES, left_series.places, right_series.places)
            runs.normalizations.ignore(ADDRESSES, left_series.arguments, right_series.arguments)
    wording = LineWording("seeds", "call", _place, _call)
    leaves = [marked_if_stopped(runs, pair, leaf(pair, wording)) for pair in pairs]
    if runs.left.all_seeds == runs.right.all_seeds:
        leaves = [_same_seeds_elsewhere(seed_leaf) if seed_leaf.verdict.differs else seed_leaf for seed_leaf in leaves]
    return group("seeds", (*leaves, *_replaced_seeds(runs)))


def _same_seeds_elsewhere(seed_leaf: Difference) -> Difference:
    """Return the leaf for equal seeds in other threads or processes: any pool worker may take a task."""
    meaning = "the runs have the same seeds, in another order or taken by other threads or processes"
    return information(seed_leaf.name, seed_leaf.left, seed_leaf.right, meaning)


def _replaced_seeds(runs: RunPair) -> Iterator[Difference]:
    left, right = runs.left.replaced, runs.right.replaced
    for process in sorted({*left, *right}, key=natural):
        sides = left.get(process), right.get(process)
        first = next(side for side in sides if side is not None)
        texts = [counted(side.count, "seed") if side is not None else "none" for side in sides]
        yield information(f"seeds replaced in process {process}", texts[0], texts[1], in_words(first))


def in_words(replaced: ReplacedSeeds) -> str:
    """Return the first seed of a process that was replaced by the recorded value."""
    first = replaced.first
    return f"{first.where}: {first.call}: recorded {first.argument}, asked for {first.asked}"


def summary(scan: MetricsScan) -> Iterator[str]:
    """Yield a line for each process of a replay with replaced seeds."""
    for process in sorted(scan.replaced, key=natural):
        replaced = scan.replaced[process]
        count = counted(replaced.count, "seed")
        yield f"process {process}: {count} replaced by the recorded, first {in_words(replaced)}"


def seeding_calls(run: RunDirectory, scan: MetricsScan) -> Iterator[str]:
    """Yield each seeding call of a run's script with its argument and place, and the number of those of libraries."""
    if not any(key.kind == "seed" for key in scan.series):
        return
    script: Counter[str] = Counter()
    libraries: Counter[str] = Counter()
    more = 0
    for line in (named.line for named in read(run) if isinstance(named.line, SeedLine)):
        place = line.where or "an unknown place"
        calls = libraries if "/" in place else script  # only files of libraries are named by their paths
        text = f"{line.call}({line.argument}), at {place}"
        if text in calls or len(calls) < MAX_CALLS:
            calls[text] += 1
        else:
            more += 1
    yield from (f"{call}{f' ({count:,} times)' if count > 1 else ''}" for call, count in script.items())
    if libraries:
        count = counted(sum(libraries.values()), "call")
        yield f"{count} of libraries, first {next(iter(libraries))}"
    if more:
        yield f"{counted(more, 'call')} with further arguments or at further places"


def _call(line: Raw) -> str:
    return f"{line['call']}({line['argument']})"


def _place(line: Raw, position: int) -> str:
    place = f" ({line['where']})" if line.get("where") else ""
    return f"call {position + 1}{place}"
