"""The curves of one metric in both runs, drawn over each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reprokit.pages import drawing as drawings
from reprokit.pages.drawing import Axis
from reprokit.report.facts import CurvePoint, MetricCurve

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 30  # margins


def drawing(curve: MetricCurve, number: int) -> str:
    """The curves of one metric in both runs, over each other, with their description for who cannot see it."""
    points = [(point.step, point.value) for point in (*curve.left, *curve.right) if point.value is not None]
    body = [drawings.text((LEFT, HEIGHT // 2), "no finite value")]
    if points:
        across = drawings.axis([step for step, _ in points], LEFT, WIDTH - RIGHT)
        up = drawings.axis([value for _, value in points], HEIGHT - BOTTOM, TOP)
        lines = [_line(curve.left, "first", across, up), _line(curve.right, "second", across, up)]
        body = [*_axes(across, up, curve.unit), *lines]
    return drawings.drawing((WIDTH, HEIGHT), f"curve{number}", curve.name, description(curve), body)


def is_drawn(curve: MetricCurve) -> bool:
    """Whether there is a line to draw: of single values the words say all."""
    return max(curve.values) > 1


def description(curve: MetricCurve) -> str:
    """What the drawing shows, in words."""
    sides = list(zip((curve.left, curve.right), curve.values, curve.not_finite, strict=True))
    if curve.right and sides[0] == sides[1]:
        return f"both runs: {_side(curve.unit, *sides[0])}"
    told = zip(("first", "second"), sides, strict=True)
    return "; ".join(f"{name} run: {_side(curve.unit, *side)}" for name, side in told if side[1])


def _side(unit: str, points: Sequence[CurvePoint], count: int, bad: int) -> str:
    values = [point.value for point in points if point.value is not None]
    span = f", from {values[0]:.6g} to {values[-1]:.6g}, least {min(values):.6g}" if values else ""
    span = f", {values[0]:.6g}" if count == 1 and values else span
    return f"{count:,} {unit}{'' if count == 1 else 's'}{span}" + (f", {bad:,} not finite" if bad else "")


def _line(points: Iterable[CurvePoint], name: str, across: Axis, up: Axis) -> str:
    places = [(across.place(point.step), up.place(point.value)) for point in points if point.value is not None]
    return drawings.line(places, name, 4 if name == "first" else 2)


def _axes(across: Axis, up: Axis, unit: str) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    yield drawings.path("axis", f"M{LEFT} {TOP}V{bottom}H{right}")
    yield drawings.text((LEFT - 6, TOP + 8), f"{up.high:.4g}", "end")
    yield drawings.text((LEFT - 6, bottom), f"{up.low:.4g}", "end")
    yield drawings.text((LEFT, HEIGHT - 10), f"{unit} {across.low}")
    yield drawings.text((right, HEIGHT - 10), f"{unit} {across.high}", "end")
