"""Curves as SVG, written by hand: a plotting library would weigh a thousand times as much as what is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from reprokit.printable import printable
from reprokit.report.facts import Curve, Point

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 30  # margins


def drawing(curve: Curve, number: int) -> str:
    """The curves of one metric in both runs, over each other, with their description for who cannot see it."""
    points = [point for point in (*curve.left, *curve.right) if point.value is not None]
    title, text = f"curve{number}-title", f"curve{number}-text"
    head = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{title} {text}">'
        f'<title id="{title}">{escape(printable(curve.name))}</title>'
        f'<desc id="{text}">{escape(description(curve))}</desc>'
    )
    if not points:
        return head + f'<text x="{LEFT}" y="{HEIGHT // 2}">no finite value</text></svg>'
    scale = _Scale(points)
    lines = _line(curve.left, "first", scale) + _line(curve.right, "second", scale)
    return head + _axes(scale, curve.unit) + lines + "</svg>"


def description(curve: Curve) -> str:
    """What the drawing shows, in words."""
    told = []
    for side, points, count, bad in zip(
        ("first", "second"), (curve.left, curve.right), curve.values, curve.not_finite, strict=True
    ):
        if not count:
            continue
        values = [point.value for point in points if point.value is not None]
        span = f", from {values[0]:.6g} to {values[-1]:.6g}, least {min(values):.6g}" if values else ""
        told.append(f"{side} run: {count} {curve.unit}s{span}" + (f", {bad} not finite" if bad else ""))
    return "; ".join(told)


class _Scale:
    """From steps and values to places in the drawing."""

    def __init__(self, points: list[Point]) -> None:
        values = [point.value for point in points if point.value is not None]
        steps = [point.step for point in points]
        self.low, self.high = min(values), max(values)
        self.first, self.last = min(steps), max(steps)

    def x(self, step: int) -> float:
        share = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _line(points: Iterable[Point], name: str, scale: _Scale) -> str:
    places = [f"{scale.x(point.step):.1f},{scale.y(point.value):.1f}" for point in points if point.value is not None]
    if len(places) == 1:
        x, y = places[0].split(",")
        return f'<circle class="{name}" cx="{x}" cy="{y}" r="{4 if name == "first" else 2}"/>'
    return f'<polyline class="{name}" points="{" ".join(places)}"/>' if places else ""


def _axes(scale: _Scale, unit: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    axis = f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
    marks = [
        (LEFT - 6, TOP + 8, "end", f"{scale.high:.4g}"),
        (LEFT - 6, bottom, "end", f"{scale.low:.4g}"),
        (LEFT, HEIGHT - 10, "start", f"{unit} {scale.first}"),
        (right, HEIGHT - 10, "end", f"{unit} {scale.last}"),
    ]
    texts = (f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in marks)
    return axis + "".join(texts)
