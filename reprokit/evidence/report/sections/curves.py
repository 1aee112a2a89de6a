"""Reads loss and metric curves of a run in one pass, and thins them out while reading."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from reprokit.core.untrusted_json import object_in
from reprokit.diff.tracker_files import is_finite
from reprokit.evidence.report.facts import CurvePoint, MetricCurve
from reprokit.evidence.report.section import ReportedRuns
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories import tracker_metrics
from reprokit.verify.read.scan import of_process
from reprokit.verify.show.summary import RunSummary

POINTS = 512  # limit of points per curve
MAX_CURVES = 64  # limit of curves per run
SHOWN = 12  # curves that a report shows

Name = tuple[str, str, str]  # process, name, unit


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the curves of both runs."""
    shown, left_out = _curves(runs.summaries)
    return {"curves": shown, "curves_left_out": left_out}


class ThinnedCurve:
    """A curve reduced to its ends and the extremes of each stretch; the length of stretches doubles as it grows."""

    def __init__(self) -> None:
        self.count = 0
        self.not_finite = 0
        self._stretch = 1
        self._ends: list[tuple[int, float | None]] = []
        self._points: list[tuple[int, float]] = []
        self._least: tuple[int, float] | None = None
        self._largest: tuple[int, float] | None = None

    def add(self, step: int, value: float | None) -> None:
        """Add a value, or None for one that is not finite."""
        self.count += 1
        self._ends[1:] = [(step, value)]
        if value is None:
            self.not_finite += 1
        else:
            if self._least is None or value < self._least[1]:
                self._least = step, value
            if self._largest is None or value > self._largest[1]:
                self._largest = step, value
        if self.count % self._stretch == 0:
            self._close()

    def _close(self) -> None:
        ends = {point for point in (self._least, self._largest) if point is not None}
        self._points += sorted(ends)
        self._least = self._largest = None
        if len(self._points) > POINTS:
            self._stretch *= 2
            self._points = list(_merged(self._points))

    def points(self) -> tuple[CurvePoint, ...]:
        """Return the remaining points, in order."""
        self._close()
        first, last = self._ends[:1], self._ends[-1:]
        points = [*(first if first != self._points[:1] else ()), *self._points]
        return tuple(CurvePoint(step, value) for step, value in (*points, *(last if last != points[-1:] else ())))


def _merged(points: list[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield the minimum and maximum of every four points."""
    for first in range(0, len(points), 4):
        four = points[first : first + 4]
        low, high = min(four, key=lambda point: point[1]), max(four, key=lambda point: point[1])
        yield from sorted({low, high})


def read(run: RunDirectory) -> dict[Name, ThinnedCurve]:
    """Return the curves of a run; raises a RunError if its metrics are damaged."""
    curves: dict[Name, ThinnedCurve] = {}
    for name, step, value in values(run):
        if name not in curves and len(curves) >= MAX_CURVES:
            continue
        curve = curves.setdefault(name, ThinnedCurve())
        curve.add(curve.count if step is None else step, value)
    return curves


def values(run: RunDirectory) -> Iterator[tuple[Name, int | None, float | None]]:
    """Yield curve, step if known, and value of every point; the value is None if it is not finite."""
    for line in run.metrics():
        kind, process, name = line.get("k"), str(line.get("p", "")), str(line.get("name", ""))
        if kind in ("loss", "log"):
            value = _number(line.get("value"))
            if value is not None:
                yield (process, name, "step"), _step(line.get("step")), value[0]
        elif kind == "history":
            for metric, numbers in object_in(line, "values").items():
                for value in map(_number, numbers if isinstance(numbers, list) else []):
                    if value is not None:
                        yield (process, f"{metric} of {name}", "epoch"), None, value[0]


def in_files(files: tracker_metrics.TrackerMetrics) -> dict[Name, ThinnedCurve]:
    """Return the curves in files of experiment trackers; single values are no curves."""
    curves: dict[Name, ThinnedCurve] = {}
    for name, points in sorted(files.series.items(), key=lambda item: item[0].order):
        numbers = [point for point in points if point.number is not None]
        if len(numbers) > 1 and len(curves) < MAX_CURVES:
            curve = curves[("", str(name), "step")] = ThinnedCurve()
            for point in numbers:
                curve.add(point.step, point.number if is_finite(point) else None)
    return curves


def _step(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _number(value: object) -> tuple[float | None] | None:
    """Return the number in a value in a tuple, (None,) if it is not finite; None for a text."""
    if not isinstance(value, dict) or value.get("text") is not None:
        return None
    decimal = value.get("decimal")
    if isinstance(decimal, (int, float)) and not isinstance(decimal, bool):
        number = float(decimal) if abs(decimal) < 1e300 else math.inf
        return (number if math.isfinite(number) else None,)
    return (None,) if decimal is None and str(value.get("dtype", "")).startswith(("float", "bfloat")) else None


def paired(left: dict[Name, ThinnedCurve], right: dict[Name, ThinnedCurve]) -> Iterator[MetricCurve]:
    """Yield the curves of two runs by metric, losses first; a single run has empty right curves."""
    names = sorted(left.keys() | right.keys(), key=lambda name: (name[1] != "loss", name[0] == "", name))
    for name in names:
        left_curve, right_curve = left.get(name, ThinnedCurve()), right.get(name, ThinnedCurve())
        process, metric, unit = name
        points = left_curve.points(), right_curve.points()
        if any(points) or left_curve.not_finite or right_curve.not_finite:
            yield MetricCurve(
                name=of_process(metric, process),
                unit=unit,
                left=points[0],
                right=points[1],
                values=(left_curve.count, right_curve.count),
                not_finite=(left_curve.not_finite, right_curve.not_finite),
            )


def _curves(summaries: Sequence[RunSummary]) -> tuple[tuple[MetricCurve, ...], int]:
    left, right = _curves_of(summaries[0]), _curves_of(summaries[1]) if len(summaries) > 1 else {}
    paired_curves = tuple(paired(left, right))
    return paired_curves[:SHOWN], max(0, len(paired_curves) - SHOWN)


def _curves_of(summary: RunSummary) -> dict[Name, ThinnedCurve]:
    return {**read(summary.directory), **in_files(summary.logged)}
