"""Compares the metrics in the files that experiment trackers wrote, value by value and bit for bit."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from reprokit.artifacts import tracker_files
from reprokit.artifacts.tracker_files import Logged, LogPoint, kind_of
from reprokit.difference import Difference, Side, Verdict, different, group, missing
from reprokit.errors import ReprokitError
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.rundir import RunDirectory
from reprokit.tolerance import Tolerance
from reprokit.verify.compare.match import RunPair
from reprokit.verify.compare.outputs import found as found_output
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import natural

CATEGORY = "metrics in files"
MOST_FILES = 1000
MOST_POINTS = 2_000_000  # of a run
GONE = "its bytes are no longer there: only their digest is known"


class TrackerSeries(NamedTuple):
    """Names a series: the directory of its files, and what the tracker calls it."""

    place: str
    series: str

    def __str__(self) -> str:
        return f"{self.series} in {self.place}"

    @property
    def order(self) -> tuple[Any, ...]:
        """Losses come first, as they change first."""
        return "loss" not in self.series.lower(), natural(self.place), natural(self.series)


@dataclass
class TrackerMetrics:
    """The metrics in the files of one run."""

    series: dict[TrackerSeries, list[LogPoint]] = field(default_factory=dict)
    trackers: dict[str, str] = field(default_factory=dict)  # by place
    problems: dict[str, str] = field(default_factory=dict)  # by place: why there may be more than was read
    unread: dict[str, str] = field(default_factory=dict)  # by place: why nothing of it was read
    digests: dict[str, list[str]] = field(default_factory=dict)  # of the files, by place


def read(run: RunDirectory, outputs: OutputsFile | None) -> TrackerMetrics:
    """Return the series in the outputs of a run whose bytes are still there."""
    normalizations = Normalizations()
    found, several = TrackerMetrics(), defaultdict(list)
    room = MOST_POINTS
    files = [file for file in (outputs.files if outputs else ()) if kind_of(file.path)]
    for number, file in enumerate(sorted(files, key=lambda file: file.path)):
        place = _place(normalizations.path(file.path), kind_of(file.path))
        found.trackers[place] = kind_of(file.path)
        found.digests.setdefault(place, []).append(file.digest)
        if number >= MOST_FILES or room <= 0:
            found.unread[place] = "there are more such files or values than are read"
            continue
        content = _content(run, file)
        if content is None:
            found.unread[place] = GONE
            continue
        if content.problem:
            found.problems[place] = content.problem
        for series, points in content.series.items():
            several[TrackerSeries(place, series)].append(points)
            room -= len(points)
    for name, pieces in several.items():
        _join(found, name, pieces)
    return found


def _join(found: TrackerMetrics, name: TrackerSeries, pieces: list[list[LogPoint]]) -> None:
    """Files of one directory: TensorBoard goes on in the next; of other trackers each is a run of its own."""
    if found.trackers[name.place] == tracker_files.TENSORBOARD:
        found.series[name] = [point for piece in pieces for point in piece]
        return
    if found.trackers[name.place] == tracker_files.MLFLOW:
        pieces = sorted(pieces)  # ids, and so paths, stand in no order
    for number, piece in enumerate(pieces, 1):
        place = name.place if number == 1 else f"{name.place} ({number})"
        found.trackers[place] = found.trackers[name.place]
        found.series[TrackerSeries(place, name.series)] = piece


def _place(path: str, kind: str) -> str:
    """Return what a file of metrics belongs to: its directory, of MLflow's the run's."""
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
    """Return the category, a leaf a series; none where neither run has such files."""
    left, right = map(read, runs.directories, runs.outputs)
    tolerance = runs.accepted("metrics")
    if not (left.trackers or right.trackers):
        return ()
    leaves = list(_unread(left, right))
    skipped = {leaf.name for leaf in leaves}
    for name in sorted({*left.series, *right.series}, key=lambda name: name.order):
        if name.place not in skipped:
            leaves.append(_leaf(name, left.series.get(name), right.series.get(name), tolerance))
    leaves += _cut(left, right, skipped)
    return (group(CATEGORY, tuple(leaves)),)


def compared(category: Difference) -> bool:
    """Return whether this is the category, with anything in it that was compared."""
    return category.name == CATEGORY and category.verdict is not Verdict.NOT_RECORDED


def _unread(left: TrackerMetrics, right: TrackerMetrics) -> Iterator[Difference]:
    """Yield the places of which one side was not read, and those of the same bytes that cannot be read to their end."""
    places = {*left.unread, *right.unread, *left.problems, *right.problems}
    for place in sorted(places, key=natural):
        digests = sorted(left.digests.get(place, ())), sorted(right.digests.get(place, ()))
        if digests[0] == digests[1] and all(digests[0]):
            yield Difference(place, Verdict.IDENTICAL, "the same bytes", "the same bytes")
        elif why := left.unread.get(place) or right.unread.get(place):
            yield Difference(place, Verdict.NOT_RECORDED, detail=f"not compared: {why}")


def _cut(left: TrackerMetrics, right: TrackerMetrics, skipped: set[str]) -> Iterator[Difference]:
    """Yield that what stands behind the damage in a file, or beyond the bounds, is not known."""
    for place in sorted({*left.problems, *right.problems} - skipped, key=natural):
        problem = left.problems.get(place) or right.problems[place]
        yield Difference(f"the rest of {place}", Verdict.NOT_RECORDED, detail=f"not compared: {problem}")


def _leaf(
    name: TrackerSeries, left: list[LogPoint] | None, right: list[LogPoint] | None, tolerance: Tolerance | None
) -> Difference:
    texts = summary(left), summary(right)
    if left is None or right is None:
        return missing(str(name), *texts, f"only the {'right' if left is None else 'left'} run logged it")
    for one, other in zip_longest(left, right):
        if one == other:
            continue
        if one is None or other is None:
            side: Side = "left" if one is None else "right"
            step = (one or other).step
            meaning = f"{name} differs first at step {step}: the {side} run ends before it"
            counts = f"{len(left)} values", f"{len(right)} values"
            return different(str(name), *counts, meaning, lacking=side)
        return _different(name, left, right, one, other, tolerance)
    return Difference(str(name), Verdict.IDENTICAL, *texts)


def _different(
    name: TrackerSeries,
    left: list[LogPoint],
    right: list[LogPoint],
    one: LogPoint,
    other: LogPoint,
    tolerance: Tolerance | None,
) -> Difference:
    if tolerance is not None and len(left) == len(right) and all(map(tolerance_of(tolerance), left, right)):
        count = sum(1 for pair in zip(left, right, strict=True) if pair[0] != pair[1])
        detail = f"{count} of {len(left)} values of {name} are not bitwise the same, all within {tolerance}"
        return different(str(name), "", "", detail, Verdict.TOLERATED)
    if one.step != other.step:
        meaning = f"{name} differs first in its steps: step {one.step} against step {other.step}"
        steps = f"step {one.step}", f"step {other.step}"
        return different(str(name), *steps, meaning)
    texts = (str(one), str(other)) if one.dtype == other.dtype else (f"{one.dtype} {one}", f"{other.dtype} {other}")
    meaning = f"{name} differs first at step {one.step}: {texts[0]} against {texts[1]}"
    return different(str(name), *texts, meaning)


def tolerance_of(tolerance: Tolerance) -> Any:
    """Return whether two points are accepted for the same."""

    def accepts(one: LogPoint, other: LogPoint) -> bool:
        if one == other:
            return True
        numbers = one.number, other.number
        if (one.step, one.dtype) != (other.step, other.dtype) or None in numbers:
            return False
        return bool(tolerance.accepts(*numbers, one.dtype))  # type: ignore[arg-type]

    return accepts


def summary(points: list[LogPoint] | None) -> str:
    """Return how many values, and the last of them."""
    if not points:
        return ""
    count = f"{len(points)} value{'' if len(points) == 1 else 's'}"
    return f"{count}, last {points[-1]} at step {points[-1].step}"


def document(found: TrackerMetrics) -> list[dict[str, Any]]:
    """Return the series as a JSON document has them: first and last value of each."""
    return [
        {
            "place": name.place,
            "tracker": found.trackers[name.place],
            "name": name.series,
            "values": len(points),
            "first": _point(points[0]),
            "last": _point(points[-1]),
        }
        for name, points in sorted(found.series.items(), key=lambda item: item[0].order)
    ]


def _point(point: LogPoint) -> dict[str, Any]:
    bits = point.bits if point.number is None else point.bits[::-1]
    return {"step": point.step, "dtype": point.dtype, "bits": bits.hex(), "text": str(point)}
