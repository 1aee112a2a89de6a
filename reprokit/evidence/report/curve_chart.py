"""Draws a metric of both runs in one plot, with their difference below it, and with the values at each place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from reprokit.core.pages import drawing as drawings
from reprokit.core.pages import environment as pages
from reprokit.core.pages.drawing import Axis
from reprokit.core.printable import printable
from reprokit.evidence.report.facts import CurvePoint, MetricCurve

WIDTH, HEIGHT, STRIP = 720, 264, 96  # of the plot, and of the difference below it
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 40, 28  # margins
PLACES = 96  # of a plot at which its values are shown
SIDES = {"first": "first run", "second": "second run"}


def curve_drawing(curve: MetricCurve, number: int) -> str:
    """Draw one metric of both runs in one plot; empty for single values, which the text states."""
    if not is_drawn(curve):
        return ""
    points = [(point.step, point.value) for point in (*curve.left, *curve.right) if point.value is not None]
    height = HEIGHT + (STRIP if curve.difference else 0)
    body = [drawings.text((LEFT, HEIGHT // 2), "no finite value")]
    if points:
        across = drawings.axis([step for step, _ in points], LEFT, WIDTH - RIGHT)
        up = drawings.axis([value for _, value in points], HEIGHT - BOTTOM, TOP)
        lines = [_line(curve.left, "first", across, up), _line(curve.right, "second", across, up)]
        body = [*_axes(across, up, curve.unit), *lines, *_legend(curve), *_strip(curve, across)]
        body += _values(curve, across, height)
    return drawings.drawing((WIDTH, height), f"curve{number}", curve.name, description(curve), body)


def is_drawn(curve: MetricCurve) -> bool:
    """Return whether there is a line to draw."""
    return max(curve.values) > 1


def caption(curve: MetricCurve) -> str:
    """Return what stands below a drawing."""
    both = bool(curve.right) and is_drawn(curve)
    sides = "First run: wide solid line; second run: thin dashed line. " if both else ""
    apart = f" {_apart(curve)}" if curve.difference else ""
    return printable(f"{curve.name}. {sides}{description(curve).capitalize()}.{apart}", pages.LONGEST)


def _apart(curve: MetricCurve) -> str:
    """Describe the difference of the runs in words."""
    values = [point for point in curve.difference if point.value is not None]
    if not values:
        return ""
    largest = max(values, key=lambda point: abs(point.value or 0.0))
    start = next((point.step for point in values if point.value), None)
    since = "" if start is None else f", not 0 from {curve.unit} {start:,} at the latest"
    return f"Below: second run minus first, largest {largest.value:.6g} at {curve.unit} {largest.step:,}{since}."


def description(curve: MetricCurve) -> str:
    """Describe the drawing in words."""
    sides = list(zip((curve.left, curve.right), curve.values, curve.not_finite, strict=True))
    if curve.right and sides[0] == sides[1]:
        return f"both runs: {_side(curve.unit, *sides[0])}"
    named_sides = zip(("first", "second"), sides, strict=True)
    return "; ".join(f"{name} run: {_side(curve.unit, *side)}" for name, side in named_sides if side[1])


def _side(unit: str, points: Sequence[CurvePoint], count: int, bad: int) -> str:
    values = [point.value for point in points if point.value is not None]
    ends = ["no number" if point.value is None else f"{point.value:.6g}" for point in (*points[:1], *points[-1:])]
    span = f", from {ends[0]} to {ends[-1]}, least {min(values):.6g}" if values else ""
    span = f", {values[0]:.6g}" if count == 1 and values else span
    return f"{count:,} {unit}{'' if count == 1 else 's'}{span}" + (f", {bad:,} not finite" if bad else "")


def _line(points: Iterable[CurvePoint], kind: str, across: Axis, up: Axis) -> str:
    places = [(across.place(point.step), up.place(point.value)) for point in points if point.value is not None]
    return drawings.line(places, kind, 4 if kind == "first" else 2)


def _axes(across: Axis, up: Axis, unit: str) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    yield drawings.path("axis", f"M{LEFT} {TOP}V{bottom}H{right}")
    yield drawings.text((LEFT - 6, TOP + 8), f"{up.high:.4g}", "end")
    yield drawings.text((LEFT - 6, bottom), f"{up.low:.4g}", "end")
    yield drawings.text((LEFT, HEIGHT - 10), f"{unit} {across.low}")
    yield drawings.text((right, HEIGHT - 10), f"{unit} {across.high}", "end")


def _legend(curve: MetricCurve) -> Iterator[str]:
    """Yield a sample of each run's line with its name, where there are two."""
    if curve.left and curve.right:
        for number, (kind, words) in enumerate(SIDES.items()):
            x = LEFT + 190 * number
            yield drawings.line([(x, 9), (x + 26, 9)], kind)
            yield drawings.text((x + 34, 13), words)


def _strip(curve: MetricCurve, across: Axis) -> Iterator[str]:
    """Yield the plot of the difference."""
    values = [point.value for point in curve.difference if point.value is not None]
    if not values:
        return
    top, bottom = HEIGHT + 18, HEIGHT + STRIP - 8
    up = drawings.axis([0.0, *values], bottom, top)
    zero = up.place(0.0)
    yield drawings.text((LEFT, HEIGHT + 10), "second run minus first")
    yield drawings.path("axis", f"M{LEFT} {top}V{bottom}M{LEFT} {zero:.1f}H{WIDTH - RIGHT}")
    ends = {up.place(up.high) + 8: up.high, up.place(up.low): up.low} if up.high > up.low else {zero: up.low}
    for y, value in ends.items():
        yield drawings.text((LEFT - 6, y), f"{value:.3g}", "end")
    yield _line(curve.difference, "apart", across, up)


def _values(curve: MetricCurve, across: Axis, height: int) -> Iterator[str]:
    """Yield the values at places from left to right, each shown where the pointer is."""
    sides = [(words, curve.left if kind == "first" else curve.right) for kind, words in SIDES.items()]
    sides = [(words, points) for words, points in sides if points] + [("difference", curve.difference)]
    steps = sorted({point.step for _, points in sides for point in points})
    steps = steps[:: -(-len(steps) // PLACES)] if steps else []
    places = [across.place(step) for step in steps]
    edges = [LEFT, *((left + right) / 2 for left, right in pairwise(places)), WIDTH - RIGHT]
    for step, x, left, right in zip(steps, places, edges, edges[1:], strict=False):
        parts = [_at(words, points, step) for words, points in sides if points]
        words = f"{curve.unit} {step:,}: {'; '.join(filter(None, parts))}"
        width = max(right - left, 0.1)
        area = f'<rect x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{height - TOP}"/>'
        mark = drawings.path("axis", f"M{x:.1f} {TOP}V{height - BOTTOM}")
        yield f'<g class="at">{area}{mark}{drawings.text((LEFT, 31), words)}</g>'


def _at(words: str, points: Sequence[CurvePoint], step: int) -> str:
    """Return the value of a line at a step, or at the nearest one that is drawn, which is then named."""
    place = bisect_left(points, step, key=lambda point: point.step)
    near = min(points[max(place - 1, 0) : place + 1], key=lambda point: abs(point.step - step))
    value = "no number" if near.value is None else f"{near.value:.7g}"
    return f"{words} {value}" + ("" if near.step == step else f" at {near.step:,}")
