"""Reads loss and metric curves of a run in one pass, and thins them out while reading."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from reprokit.core.untrusted_json import object_in
from reprokit.diff.tracker_files import is_finite
from reprokit.evidence.report.facts import CurvePoint, MetricCurve
from reprokit.evidence.report.section import ReportedRuns
from reprokit.run_files import numbers
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories import tracker_metrics
from reprokit.verify.read.scan import of_process
from reprokit.verify.show.summary import RunSummary

POINTS = 512  # limit of points per curve
MAX_CURVES = 64  # limit of curves per run
SHOWN = 12  # curves that a report shows
MAX_STEP, MAX_VALUE = 1 << 53, 1e300  # beyond which nothing is drawn

MAX_SUBTRACTED = 1_000_000  # values of a curve; of longer ones no difference is drawn

Name = tuple[str, str, str]  # process, name, unit
Series = tuple[array, array]  # type: ignore[type-arg]  # of Python 3.11 on: steps and values


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the curves of both runs."""
    shown, left_out = _curves(runs.summaries)
    return {"curves": shown, "curves_left_out": left_out}


class ThinnedCurve:
    """A curve reduced to its ends and the extremes of each stretch; the length of stretches doubles as it grows."""

    def __init__(self) -> None:
        self.count = 0
        self.not_finite = 0
        self.dtype = "float64"  # of its values, by which their decimals are chosen
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

    def add_all(self, steps: list[int], values: list[float]) -> None:
        """Add finite values, each as add() would, by the extremes of each stretch."""
        self._ends = [*(self._ends[:1] or [(steps[0], values[0])]), (steps[-1], values[-1])]
        at = 0
        while at < len(values):
            some = values[at : at + self._stretch - self.count % self._stretch]
            low, high = min(some), max(some)
            if self._least is None or low < self._least[1]:
                self._least = steps[at + some.index(low)], low
            if self._largest is None or high > self._largest[1]:
                self._largest = steps[at + some.index(high)], high
            at += len(some)
            self.count += len(some)
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
        points += last if last != points[-1:] else ()
        return tuple(CurvePoint(step, self._spelled(value)) for step, value in points)

    def _spelled(self, value: float | None) -> float | None:
        return None if value is None else numbers.shortest(self.dtype, float(value))


def _merged(points: list[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield the minimum and maximum of every four points."""
    for first in range(0, len(points), 4):
        four = points[first : first + 4]
        low, high = min(four, key=lambda point: point[1]), max(four, key=lambda point: point[1])
        yield from sorted({low, high})


def read(run: RunDirectory) -> dict[Name, ThinnedCurve]:
    """Return the curves of a run; raises a RunError if its metrics are damaged."""
    curves: dict[Name, ThinnedCurve] = {}

    def curve_of(name: Name) -> ThinnedCurve | None:
        return curves.setdefault(name, ThinnedCurve()) if name in curves or len(curves) < MAX_CURVES else None

    for line in run.metrics():
        for name, step, value in _points(line):
            if (curve := curve_of(name)) is not None:
                curve.add(curve.count if step is None else step, value)
    for process in numbers.read(run):
        for part in process.parts():
            if part.series.dtype == "bool" or (curve := curve_of((process.process, part.series.name, "step"))) is None:
                continue
            curve.dtype = part.series.dtype
            steps, several = part.columns()
            if _are_drawn(steps, several):
                curve.add_all(steps, several)
                continue
            for step, number in zip(steps, several, strict=True):
                place = _step(step)
                curve.add(curve.count if place is None else place, _finite(number))
    return curves


def _are_drawn(steps: list[int], several: list[float]) -> bool:
    """Return whether all points are where they can be drawn."""
    has_steps = min(steps) >= 0 and max(steps) < MAX_STEP
    return has_steps and all(map(math.isfinite, several)) and min(several) > -MAX_VALUE and max(several) < MAX_VALUE


def values(run: RunDirectory) -> Iterator[tuple[Name, int | None, float | None]]:
    """Yield curve, step if known, and value of every point; the value is None if it is not finite."""
    for line in run.metrics():
        yield from _points(line)
    for process in numbers.read(run):
        for _, line in process.lines():
            yield from _points(line)


def _points(line: dict[str, Any]) -> Iterator[tuple[Name, int | None, float | None]]:
    kind, process, name = line.get("k"), str(line.get("p", "")), str(line.get("name", ""))
    if kind in ("loss", "log"):
        value = _number(line.get("value"))
        if value is not None:
            yield (process, name, "step"), _step(line.get("step")), value[0]
    elif kind == "history":
        for metric, several in object_in(line, "values").items():
            for value in map(_number, several if isinstance(several, list) else []):
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
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_STEP else None


def _finite(number: float) -> float | None:
    """Return a number as a point of a curve; None if it is not finite, or beyond what is drawn."""
    return float(number) if abs(number) < MAX_VALUE else None


def _number(value: object) -> tuple[float | None] | None:
    """Return the number in a value in a tuple, (None,) if it is not finite; None for a text."""
    if not isinstance(value, dict) or value.get("text") is not None:
        return None
    decimal = value.get("decimal")
    if isinstance(decimal, (int, float)) and not isinstance(decimal, bool):
        return (_finite(decimal),)
    return (None,) if decimal is None and str(value.get("dtype", "")).startswith(("float", "bfloat")) else None


def paired(left: dict[Name, ThinnedCurve], right: dict[Name, ThinnedCurve]) -> Iterator[tuple[Name, MetricCurve]]:
    """Yield the curves of two runs by metric, losses first; a single run has empty right curves."""
    names = sorted(left.keys() | right.keys(), key=lambda name: (name[1] != "loss", name[0] == "", name))
    for name in names:
        left_curve, right_curve = left.get(name, ThinnedCurve()), right.get(name, ThinnedCurve())
        process, metric, unit = name
        points = left_curve.points(), right_curve.points()
        if any(points) or left_curve.not_finite or right_curve.not_finite:
            yield (
                name,
                MetricCurve(
                    name=of_process(metric, process),
                    unit=unit,
                    left=points[0],
                    right=points[1],
                    values=(left_curve.count, right_curve.count),
                    not_finite=(left_curve.not_finite, right_curve.not_finite),
                ),
            )


def _curves(summaries: Sequence[RunSummary]) -> tuple[tuple[MetricCurve, ...], int]:
    left, right = curves_of(summaries[0]), curves_of(summaries[1]) if len(summaries) > 1 else {}
    curves = list(paired(left, right))
    shown = curves[:SHOWN]
    differing = {name for name, curve in shown if curve.left and curve.right and curve.left != curve.right}
    differing = {name for name in differing if max(left[name].count, right[name].count) <= MAX_SUBTRACTED}
    if differing:
        series = [_series(summary, differing) for summary in summaries]
        apart = {name: _difference(*(one.get(name) for one in series)) for name in differing}
        shown = [(name, replace(curve, difference=apart.get(name, ()))) for name, curve in shown]
    return tuple(curve for _, curve in shown), max(0, len(curves) - SHOWN)


def _series(summary: RunSummary, names: set[Name]) -> dict[Name, Series]:
    """Return all values of some curves of a run; NaN stands for what is not finite."""
    series: dict[Name, Series] = {name: (array("q"), array("d")) for name in names}

    def add(name: Name, step: int | None, value: float | None) -> None:
        if name in series:
            steps, several = series[name]
            steps.append(len(steps) if step is None else step)
            several.append(math.nan if value is None else value)

    for line in summary.directory.metrics():
        for value in _points(line):
            add(*value)
    for process in numbers.read(summary.directory):
        for part in process.parts():
            name = (process.process, part.series.name, "step")
            if part.series.dtype != "bool" and name in names:
                for step, number in zip(*part.columns(), strict=True):
                    add(name, _step(step), _finite(number))
    for logged, points in summary.logged.series.items():
        for point in points:
            if point.number is not None:
                add(("", str(logged), "step"), point.step, point.number if is_finite(point) else None)
    return series


def _difference(left: Series | None, right: Series | None) -> tuple[CurvePoint, ...]:
    """Return what the right series has more than the left one, as far as both have the same steps."""
    curve = ThinnedCurve()
    if left is None or right is None:
        return ()
    for left_step, left_value, right_step, right_value in zip(*left, *right, strict=False):
        if left_step != right_step:
            break
        apart = right_value - left_value
        curve.add(left_step, apart if math.isfinite(apart) else None)
    return curve.points() if curve.count > 1 else ()


def curves_of(summary: RunSummary) -> dict[Name, ThinnedCurve]:
    """Return the curves that a run recorded, and those in files of experiment trackers."""
    return {**read(summary.directory), **in_files(summary.logged)}
