"""Compares the metrics in files of experiment trackers, value by value and bit by bit."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from reprokit.core.difference import BookkeepingKind, Difference, Side, Verdict, different, group, missing
from reprokit.core.errors import ReprokitError
from reprokit.core.tolerance import Tolerance
from reprokit.diff import tracker_files
from reprokit.diff.tracker_files import Logged, LogPoint, kind_of
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import Contexts, recognized
from reprokit.verify.categories.file_bookkeeping import value_name
from reprokit.verify.categories.match import RunPair
from reprokit.verify.categories.outputs import found as found_output
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.output_paths import OutputPaths
from reprokit.verify.read.scan import natural

CATEGORY = "metrics in files"
MOST_FILES = 1000
MOST_POINTS = 2_000_000  # read of a run
GONE = "its bytes are no longer there: only their digest is known"


class TrackerSeries(NamedTuple):
    """The name of a series: the directory of its files, and the tracker's name for it."""

    place: str
    series: str

    def __str__(self) -> str:
        return f"{self.series} in {self.place}"

    @property
    def order(self) -> tuple[Any, ...]:
        """Return a sort key by which losses come first, as they change first."""
        return "loss" not in self.series.lower(), natural(self.place), natural(self.series)


@dataclass
class TrackerMetrics:
    """The metrics in the files of one run."""

    series: dict[TrackerSeries, list[LogPoint]] = field(default_factory=dict)
    trackers: dict[str, str] = field(default_factory=dict)  # by place
    problems: dict[str, str] = field(default_factory=dict)  # by place: why there may be more values than were read
    unread: dict[str, str] = field(default_factory=dict)  # by place: why nothing was read
    digests: dict[str, list[str]] = field(default_factory=dict)  # of the files, by place


def read(run: RunDirectory, outputs: OutputsFile | None, paths: OutputPaths | None = None) -> TrackerMetrics:
    """Return the series in a run's outputs whose files still exist; `paths` are the names that both runs have."""
    paths = paths or OutputPaths()
    normalizations = Normalizations()
    metrics, points_by_file = TrackerMetrics(), defaultdict(list)
    remaining = MOST_POINTS
    files = [file for file in (outputs.files if outputs else ()) if kind_of(file.path)]
    for number, file in enumerate(sorted(files, key=lambda file: file.path)):
        place = _place(paths.common(normalizations.path(file.path)), kind_of(file.path))
        metrics.trackers[place] = kind_of(file.path)
        metrics.digests.setdefault(place, []).append(file.digest)
        if number >= MOST_FILES or remaining <= 0:
            metrics.unread[place] = "there are more such files or values than are read"
            continue
        content = _content(run, file)
        if content is None:
            metrics.unread[place] = GONE
            continue
        if content.problem:
            metrics.problems[place] = content.problem
        for series, points in content.series.items():
            points_by_file[TrackerSeries(place, series)].append(points)
            remaining -= len(points)
    for name, pieces in points_by_file.items():
        _join_files(metrics, name, pieces)
    return metrics


def _join_files(metrics: TrackerMetrics, name: TrackerSeries, pieces: list[list[LogPoint]]) -> None:
    """Add a series from several files: TensorBoard continues it in the next file, others start a run in each."""
    if metrics.trackers[name.place] == tracker_files.TENSORBOARD:
        metrics.series[name] = [point for piece in pieces for point in piece]
        return
    if metrics.trackers[name.place] == tracker_files.MLFLOW:
        pieces = sorted(pieces)  # run ids, and so paths, have no order
    for number, piece in enumerate(pieces, 1):
        place = name.place if number == 1 else f"{name.place} ({number})"
        metrics.trackers[place] = metrics.trackers[name.place]
        metrics.series[TrackerSeries(place, name.series)] = piece


def _place(path: str, kind: str) -> str:
    """Return the directory that a file of metrics belongs to; for MLflow that of the run."""
    if kind == tracker_files.MLFLOW:
        return path.rpartition("/metrics/")[0]
    place = os.path.dirname(path) or "."
    return f"{place} (summary)" if kind == tracker_files.WANDB_SUMMARY else place


def _content(run: RunDirectory, file: OutputFile) -> Logged | None:
    with suppress(OSError, ReprokitError):
        source = found_output(run, file)
        if source is not None:
            try:
                return tracker_files.read(file.path, source)
            finally:
                source.close()
    return None


def compare(runs: RunPair) -> tuple[Difference, ...]:
    """Return the category with a leaf for each series; nothing if neither run has such files."""
    left, right = map(read, runs.directories, runs.outputs, runs.paths)
    tolerance = runs.accepted("metrics")
    if not (left.trackers or right.trackers):
        return ()
    leaves = list(_unread(left, right))
    skipped = {leaf.name for leaf in leaves}
    for name in sorted({*left.series, *right.series}, key=lambda name: name.order):
        if name.place not in skipped:
            series = left.series.get(name), right.series.get(name)
            leaves.append(_bookkeeping(name, *series, runs.contexts) or _leaf(name, *series, tolerance))
    leaves += _damaged_rest(left, right, skipped)
    return (group(CATEGORY, tuple(leaves)),)


def compared(category: Difference) -> bool:
    """Return whether this is the category, and anything in it was compared."""
    return category.name == CATEGORY and category.verdict is not Verdict.NOT_RECORDED


def _unread(left: TrackerMetrics, right: TrackerMetrics) -> Iterator[Difference]:
    """Yield places that one side did not read, and damaged ones with equal bytes."""
    places = {*left.unread, *right.unread, *left.problems, *right.problems}
    for place in sorted(places, key=natural):
        digests = sorted(left.digests.get(place, ())), sorted(right.digests.get(place, ()))
        if digests[0] == digests[1] and all(digests[0]):
            yield Difference(place, Verdict.IDENTICAL, "the same bytes", "the same bytes")
        elif reason := left.unread.get(place) or right.unread.get(place):
            yield Difference(place, Verdict.NOT_RECORDED, detail=f"not compared: {reason}")


def _damaged_rest(left: TrackerMetrics, right: TrackerMetrics, skipped: set[str]) -> Iterator[Difference]:
    """Yield a leaf for each place whose values after damage, or beyond the limits, are unknown."""
    for place in sorted({*left.problems, *right.problems} - skipped, key=natural):
        problem = left.problems.get(place) or right.problems[place]
        yield Difference(f"the rest of {place}", Verdict.NOT_RECORDED, detail=f"not compared: {problem}")


def _bookkeeping(
    name: TrackerSeries, left: list[LogPoint] | None, right: list[LogPoint] | None, contexts: Contexts
) -> Difference | None:
    """Return the leaf of a series of times or rates in which nothing but the values differs; else None."""
    if left is None or right is None or len(left) != len(right):
        return None
    pairs = [pair for pair in zip(left, right, strict=True) if pair[0] != pair[1]]
    kinds = {bookkeeping_kind(name, *pair, contexts) for pair in pairs}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        return None
    texts = summary(left), summary(right)
    return Difference(str(name), Verdict.BOOKKEEPING, *texts, kind.counted(len(pairs)), kind=kind, count=len(pairs))


def bookkeeping_kind(
    name: TrackerSeries, left: LogPoint, right: LogPoint, contexts: Contexts
) -> BookkeepingKind | None:
    """Return what kind of bookkeeping two values of a series are; None if they may be results."""
    if (left.step, left.dtype) != (right.step, right.dtype):
        return None
    texts = [repr(point.number) if point.number is not None else str(point) for point in (left, right)]
    return recognized(value_name(name.series), texts[0], texts[1], contexts)


def _leaf(
    name: TrackerSeries, left: list[LogPoint] | None, right: list[LogPoint] | None, tolerance: Tolerance | None
) -> Difference:
    texts = summary(left), summary(right)
    if left is None or right is None:
        return missing(str(name), *texts, f"only the {'right' if left is None else 'left'} run logged it")
    for left_point, right_point in zip_longest(left, right):
        if left_point == right_point:
            continue
        if left_point is None or right_point is None:
            side: Side = "left" if left_point is None else "right"
            step = (left_point or right_point).step
            meaning = f"{name} differs first at step {step}: the {side} run ends before it"
            counts = f"{len(left)} values", f"{len(right)} values"
            return different(str(name), *counts, meaning, lacking=side)
        return _different(name, left, right, left_point, right_point, tolerance)
    return Difference(str(name), Verdict.IDENTICAL, *texts)


def _different(
    name: TrackerSeries,
    left: list[LogPoint],
    right: list[LogPoint],
    left_point: LogPoint,
    right_point: LogPoint,
    tolerance: Tolerance | None,
) -> Difference:
    if tolerance is not None and len(left) == len(right) and all(map(tolerance_of(tolerance), left, right)):
        count = sum(1 for pair in zip(left, right, strict=True) if pair[0] != pair[1])
        detail = f"{count} of {len(left)} values of {name} are not bitwise the same, all within {tolerance}"
        return different(str(name), "", "", detail, Verdict.TOLERATED)
    if left_point.step != right_point.step:
        meaning = f"{name} differs first in its steps: step {left_point.step} against step {right_point.step}"
        steps = f"step {left_point.step}", f"step {right_point.step}"
        return different(str(name), *steps, meaning)
    texts = (
        (str(left_point), str(right_point))
        if left_point.dtype == right_point.dtype
        else (f"{left_point.dtype} {left_point}", f"{right_point.dtype} {right_point}")
    )
    meaning = f"{name} differs first at step {left_point.step}: {texts[0]} against {texts[1]}"
    return different(str(name), *texts, meaning)


def tolerance_of(tolerance: Tolerance) -> Any:
    """Return a function that tells whether two points are equal within the tolerance."""

    def is_accepted(left_point: LogPoint, right_point: LogPoint) -> bool:
        if left_point == right_point:
            return True
        numbers = left_point.number, right_point.number
        if (left_point.step, left_point.dtype) != (right_point.step, right_point.dtype) or None in numbers:
            return False
        return bool(tolerance.accepts(*numbers, left_point.dtype))  # type: ignore[arg-type]

    return is_accepted


def summary(points: list[LogPoint] | None) -> str:
    """Return the number of values, and the last one."""
    if not points:
        return ""
    count = f"{len(points)} value{'' if len(points) == 1 else 's'}"
    return f"{count}, last {points[-1]} at step {points[-1].step}"


def document(metrics: TrackerMetrics) -> list[dict[str, Any]]:
    """Return the series for a JSON document, with the first and the last value of each."""
    return [
        {
            "place": name.place,
            "tracker": metrics.trackers[name.place],
            "name": name.series,
            "values": len(points),
            "first": _point(points[0]),
            "last": _point(points[-1]),
        }
        for name, points in sorted(metrics.series.items(), key=lambda item: item[0].order)
    ]


def _point(point: LogPoint) -> dict[str, Any]:
    bits = point.bits if point.number is None else point.bits[::-1]
    return {"step": point.step, "dtype": point.dtype, "bits": bits.hex(), "text": str(point)}
