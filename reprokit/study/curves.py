"""The metrics of all runs as curves, thinned out to what a drawing can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from reprokit.study.facts import Curve, CurveLine
from reprokit.study.results import MetricSeries, RunResult
from reprokit.study.statistics import usable
from reprokit.study.wording import short

MAX_CURVES: Final = 12
MAX_LINES: Final = 400  # of one metric
MAX_POINTS: Final = 200  # of one line

Name = tuple[str, Literal["epoch", "step"]]


def curves(runs: Sequence[RunResult]) -> tuple[tuple[Curve, ...], int]:
    """A curve for each metric, and how many metrics are left out; those that most runs have come first."""
    found: dict[Name, list[CurveLine]] = {}
    for run in runs:
        for one in run.series:
            if one.values:
                found.setdefault((one.name, one.by), []).append(_line(run, one))
    for lines in found.values():
        lines.sort(key=lambda line: line.pair)  # of each setup as many, where there are too many
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    made = tuple(
        Curve(metric=short(name), by=by, lines=tuple(lines[:MAX_LINES]), left_out=max(0, len(lines) - MAX_LINES))
        for (name, by), lines in ordered[:MAX_CURVES]
    )
    return made, max(0, len(ordered) - MAX_CURVES)


def _line(run: RunResult, series: MetricSeries) -> CurveLine:
    finite = [(number, value if usable(value) else None) for number, value in enumerate(series.values, 1)]
    return CurveLine(
        setup=run.setup,
        pair=run.pair,
        part=run.part,
        points=tuple(thinned(finite, MAX_POINTS)),
        values=len(finite),
        not_finite=sum(value is None for _, value in finite),
    )


def thinned(points: Sequence[tuple[int, float | None]], most: int) -> Sequence[tuple[int, float | None]]:
    """The first and last, the least and largest of each stretch, and a gap where there is one."""
    if len(points) <= most:
        return points
    kept = {points[0], points[-1]}
    size = -(-2 * len(points) // most)
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        numbers = [point for point in stretch if point[1] is not None]
        if numbers:
            kept |= {min(numbers, key=lambda point: point[1] or 0.0), max(numbers, key=lambda point: point[1] or 0.0)}
        if len(numbers) < len(stretch):
            kept.add(next(point for point in stretch if point[1] is None))
    return sorted(kept, key=lambda point: point[0])
