"""Drawings as SVG, written by hand: a plotting library would weigh a thousand times as much as what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from reprokit.core.printable import printable

Place = tuple[float, float]
STEPS = (1, 2, 2.5, 5, 10)  # between marks, of a power of ten
APART = 100.0  # times as large as the least: more than a linear axis can show


@dataclass(frozen=True)
class Axis:
    """From values to places between two ends of a drawing."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies; in the middle if there is one value only."""
        low, high, here = (
            math.log10(number) if self.logarithmic else number for number in (self.low, self.high, value)
        )
        share = (here - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def marks(self, most: int) -> list[float]:
        """Round values along the axis, at most so many and one more."""
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers[:: max(1, -(-len(powers) // most))]]
        span = self.high - self.low
        if not 0 < span < math.inf:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next((power * multiple for multiple in STEPS if power * multiple * most >= span), span)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def axis(values: Sequence[float], start: float, end: float, *, may_be_logarithmic: bool = False) -> Axis:
    """Return an axis from the least to the largest of some values."""
    low, high = min(values), max(values)
    return Axis(low, high, start, end, may_be_logarithmic and low > 0 and high / low >= APART)


def drawing(size: tuple[int, int], name: str, title: str, description: str, body: Iterable[str]) -> str:
    """Return a drawing with its description for who cannot see it; its name is unique in the page."""
    width, height = size
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{escape(printable(title))}</title>'
        f'<desc id="{name}-text">{escape(printable(description, 2000))}</desc>{"".join(body)}</svg>'
    )


def text(place: Place, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return a text; the anchor is "start", "middle" or "end"."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{place[0]:g}" y="{place[1]:g}" text-anchor="{anchor}"{named}>{escape(printable(words))}</text>'


def line(places: Sequence[Place], kind: str, size: float = 2) -> str:
    """Return a line through places; a point where there is one only."""
    if len(places) == 1:
        x, y = places[0]
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"/>'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{kind}" points="{points}"/>' if places else ""


def path(kind: str, course: str) -> str:
    """Return a path; its course is made of numbers and letters only."""
    return f'<path class="{kind}" d="{course}"/>'


def points(places: Iterable[Place], kind: str) -> str:
    """Many points as one path, a tenth of the size of circles; round or square as the style has line ends."""
    course = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
    return path(kind, course) if course else ""


def fitting(words: str, most: int) -> str:
    """Return a text cut in its middle, where names of one kind differ least."""
    words = printable(words)
    return words if len(words) <= most else f"{words[: most // 2 - 1]}…{words[-(most - most // 2) :]}"
