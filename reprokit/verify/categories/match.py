"""Matches the series of two runs and finds the first line in which each pair differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from reprokit.core.difference import Side
from reprokit.core.tolerance import Tolerance, Tolerances
from reprokit.model.outputs import OutputsFile
from reprokit.model.run import RunFile
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import Contexts
from reprokit.verify.categories.declared_outputs import DeclaredIgnores
from reprokit.verify.read import metric_lines
from reprokit.verify.read.evaluation_columns import EvaluationChecker
from reprokit.verify.read.normalization import ORDER, Normalizations
from reprokit.verify.read.output_paths import OutputPaths, paired_paths
from reprokit.verify.read.run_contexts import run_context, with_directories, with_own_names
from reprokit.verify.read.scan import (
    MAX_SORTED,
    MetricsScan,
    ScannedProcess,
    ScannedSeries,
    SeriesKey,
    collect,
    order_of,
    scan,
)

Raw = dict[str, Any]
# Kinds of lines with values, and the quantity whose tolerance applies to them.
QUANTITY = {"loss": "loss", "log": "metrics", "epoch": "metrics", "history": "metrics", "evaluate": "scores"}
NAMED = ("log", "epoch", "history", "evaluate")  # whose values have names, which may be those of times


@dataclass(frozen=True)
class SeriesPair:
    """One series of both runs and, if they differ, the first position and its lines."""

    key: SeriesKey
    left: ScannedSeries | None
    right: ScannedSeries | None
    position: int | None = None  # of the first line that differs
    left_line: Raw | None = None
    right_line: Raw | None = None

    @property
    def same(self) -> bool:
        return self.left is not None and self.right is not None and self.position is None

    @property
    def differs(self) -> bool:
        """Return whether both runs have it and it differs."""
        return self.left is not None and self.right is not None and self.position is not None

    @property
    def shorter(self) -> Side | None:
        """Return the side that only lacks lines of the other: all of them, or those at the end."""
        if self.left is None or self.right is None:
            return "left" if self.left is None else "right"
        if (self.left_line is None) == (self.right_line is None):
            return None
        return "left" if self.left_line is None else "right"

    @property
    def positions(self) -> range:
        """Return the positions of all lines, in the longer of both series."""
        return range(max(side.count if side is not None else 0 for side in (self.left, self.right)))


@dataclass(frozen=True)
class RunPair:
    """Two runs with their metrics matched: the input of every comparator."""

    directories: tuple[RunDirectory, RunDirectory]
    left: MetricsScan
    right: MetricsScan
    pairs: tuple[SeriesPair, ...]  # in order of process, kind and name
    normalizations: Normalizations
    tolerances: Tolerances
    declared: DeclaredIgnores = field(default_factory=DeclaredIgnores)
    files_at_end: tuple[OutputsFile | None, OutputsFile | None] | None = None  # instead of what each run itself wrote
    strict_console: bool = False  # whether printed lines are compared as they are

    @cached_property
    def contexts(self) -> Contexts:
        """Return what of each run may appear in its lines and files without being a result."""
        return with_directories(self._contexts, self.paths[0].pairs)

    @cached_property
    def paths(self) -> tuple[OutputPaths, OutputPaths]:
        """Return the names under which the outputs of both runs are compared."""
        return paired_paths(self.outputs, self._contexts)

    @cached_property
    def _contexts(self) -> Contexts:
        left, right = self.directories
        contexts = run_context(left, self.left), run_context(right, self.right)
        return with_own_names(contexts, (self.left, self.right), self.outputs)

    @property
    def files(self) -> tuple[RunFile, RunFile]:
        """Return the content of both run.json."""
        return self.directories[0].run, self.directories[1].run

    @cached_property
    def outputs(self) -> tuple[OutputsFile | None, OutputsFile | None]:
        """Return the content of both outputs.json."""
        return self.files_at_end or (self.directories[0].outputs(), self.directories[1].outputs())

    @cached_property
    def lines(self) -> list[dict[SeriesKey, list[Raw]]]:
        """Return the lines, by run, of series that differ and have a tolerance or names, read in one pass each."""
        tolerated = {kind for kind, quantity in QUANTITY.items() if quantity in self.tolerances.of}
        return self._collect(*tolerated.union(NAMED))

    @cached_property
    def evaluations(self) -> list[dict[SeriesKey, list[Raw]]]:
        """Return the lines, by run, of evaluations that differ; their number is bounded."""
        return self._collect("evaluation")

    def _collect(self, *kinds: str) -> list[dict[SeriesKey, list[Raw]]]:
        positions = {pair.key: pair.positions for pair in self.of(*kinds) if pair.differs}
        return [collect(run, positions) for run in self.directories]

    def accepted(self, quantity: str) -> Tolerance | None:
        """Return the requested tolerance of a quantity; None if there is none."""
        return self.tolerances.of.get(quantity)

    def of(self, *kinds: str) -> Iterator[SeriesPair]:
        """Yield the pairs of these kinds, in the order of the kinds, then of processes."""
        for kind in kinds:
            yield from (pair for pair in self.pairs if pair.key.kind == kind)

    def unknown(self) -> Iterator[SeriesPair]:
        """Return the pairs of kinds that this version does not know; they are compared as well."""
        return (pair for pair in self.pairs if pair.key.kind not in {*metric_lines.KINDS, metric_lines.END_WEIGHTS})

    def has(self, kinds: frozenset[str]) -> bool:
        """Return whether either run has a line of one of these kinds."""
        return self.left.has(kinds) or self.right.has(kinds)

    def process(self, name: str) -> tuple[ScannedProcess | None, ScannedProcess | None]:
        """Return the process of this name in both runs."""
        return self.left.processes.get(name), self.right.processes.get(name)


def match(
    left: RunDirectory,
    right: RunDirectory,
    tolerances: Tolerances,
    declared: DeclaredIgnores | None = None,
    *,
    strict_console: bool = False,
) -> RunPair:
    """Read both runs and compare their series: one pass over each, and a second one if they differ."""
    normalizations = Normalizations()
    scans = (
        scan(left, Normalizations(), EvaluationChecker(left)),
        scan(right, Normalizations(), EvaluationChecker(right)),
    )
    keys = sorted({*scans[0].series, *scans[1].series}, key=lambda key: key.order)
    series_of_both = {key: (scans[0].series.get(key), scans[1].series.get(key)) for key in keys}
    spans = {key: span for key in keys if (span := _differing_span(*series_of_both[key])) is not None}
    collected = collect(left, spans), collect(right, spans)
    pairs = []
    for key in keys:
        pair = SeriesPair(key, *series_of_both[key])
        if key in spans:
            pair = _with_first_difference(
                pair, spans[key].start, collected[0].get(key, []), collected[1].get(key, []), normalizations
            )
        pairs.append(pair)
    how = tolerances, declared or DeclaredIgnores()
    return RunPair((left, right), *scans, tuple(pairs), normalizations, *how, strict_console=strict_console)


def _differing_span(left: ScannedSeries | None, right: ScannedSeries | None) -> range | None:
    """Return the positions among which the first difference lies; None if there is none."""
    if left is None or right is None:
        return None
    for left_chunk, right_chunk in zip_longest(left.chunks, right.chunks):
        if left_chunk != right_chunk:
            start = min(chunk[0] for chunk in (left_chunk, right_chunk) if chunk is not None)
            length = max(left.count, right.count)
            if not (left.ordered and right.ordered) and length <= MAX_SORTED:
                return range(length)
            return range(start, _chunk_end(left, right, start))
    return None


def _chunk_end(left: ScannedSeries, right: ScannedSeries, start: int) -> int:
    """Return the end of the chunk that begins at `start`, in the series where it is longer."""
    ends = []
    for series in (left, right):
        next_starts = [position for position, _ in series.chunks if position > start]
        ends.append(next_starts[0] if next_starts else series.count)
    return max(ends)


def _with_first_difference(
    pair: SeriesPair, start: int, left: list[Raw], right: list[Raw], normalizations: Normalizations
) -> SeriesPair:
    """Return the pair with the first difference among the lines collected from `start` on."""
    assert pair.left is not None
    assert pair.right is not None
    if not (pair.left.ordered and pair.right.ordered):
        left, right = sorted(left, key=order_of), sorted(right, key=order_of)
    discarded = Normalizations()
    for index, (left_line, right_line) in enumerate(zip_longest(left, right), start):
        is_uncollected = (left_line is None and index < pair.left.count) or (
            right_line is None and index < pair.right.count
        )
        if is_uncollected:  # not collected, to bound memory
            return replace(pair, position=start)
        if (
            left_line is None
            or right_line is None
            or metric_lines.content(left_line, discarded) != metric_lines.content(right_line, discarded)
        ):
            return replace(pair, position=index, left_line=left_line, right_line=right_line)
    if start == 0 and len(left) == pair.left.count and len(right) == pair.right.count:
        normalizations.add(ORDER)
        return pair
    return replace(pair, position=start)
