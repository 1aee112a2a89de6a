"""Turns a matched pair of series into a leaf, in the words of its kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reprokit.difference import Difference, Side, Verdict, missing
from reprokit.verify.compare.match import Raw, SeriesPair
from reprokit.verify.read.scan import ScannedSeries, SeriesKey

KINDS = {"record": "recording", "replay": "replay", "run": "run"}  # of runs


@dataclass(frozen=True)
class LinePoint:
    """Where two lines differ and what stands there on each side."""

    where: str
    left: str
    right: str


@dataclass(frozen=True)
class Wording:
    """How one kind of line is spoken of."""

    noun: str  # "loss"; "" where the series' own name says it
    unit: str  # "step": what the lines are counted in
    point: Callable[[Raw, Raw, int], LinePoint]  # the first difference of two lines at this position
    place: Callable[[Raw, int], str]  # where a line stands, for a line that only one side has
    last: Callable[[Raw], str]  # the last line, for a summary; may be empty


def title(key: SeriesKey, noun: str) -> str:
    """The name of a series for people."""
    name = noun if noun and noun == key.name else f"{noun} {key.name}".strip()
    return f"{name} of process {key.process}"


def leaf(pair: SeriesPair, wording: Wording) -> Difference:
    """What came out of comparing one series."""
    name = title(pair.key, wording.noun)
    left, right = _summary(pair.left, wording), _summary(pair.right, wording)
    if pair.left is None or pair.right is None:
        return missing(name, left, right, f"only the {'left' if left else 'right'} run recorded it")
    if pair.position is None:
        return Difference(name, Verdict.IDENTICAL, left, right)
    if pair.left_line is None and pair.right_line is None:
        meaning = f"{name} differs at or after line {pair.position + 1} of its kind"
        return Difference(name, Verdict.DIFFERENT, left, right, meaning, is_sentence=True)
    if pair.left_line is None or pair.right_line is None:
        return _ends_early(pair, wording, name)
    point = wording.point(pair.left_line, pair.right_line, pair.position)
    meaning = f"{name} differs first at {point.where}: {point.left} against {point.right}"
    return Difference(name, Verdict.DIFFERENT, point.left, point.right, meaning, is_sentence=True)


def _ends_early(pair: SeriesPair, wording: Wording, name: str) -> Difference:
    line = pair.left_line if pair.left_line is not None else pair.right_line
    assert line is not None
    assert pair.position is not None
    side: Side = "left" if pair.left_line is None else "right"
    meaning = f"{name} differs first at {wording.place(line, pair.position)}: the {side} run ends before it"
    counts = _counted(pair.left, wording), _counted(pair.right, wording)
    return Difference(name, Verdict.DIFFERENT, *counts, meaning, is_sentence=True, lacking=side)


def _counted(series: ScannedSeries | None, wording: Wording) -> str:
    return counted(series.count, wording.unit) if series is not None else ""


def counted(number: int, unit: str) -> str:
    """A number of things; of "call of fit" the first word takes the plural."""
    first, _, rest = unit.partition(" ")
    return f"{number} {first}{'' if number == 1 else 's'} {rest}".rstrip()


def _summary(series: ScannedSeries | None, wording: Wording) -> str:
    return summary(series, wording) if series is not None else ""


def summary(series: ScannedSeries, wording: Wording) -> str:
    """How many lines, and the last of them."""
    last = wording.last(series.last) if series.last is not None else ""
    if last and series.count == 1:
        return last
    return f"{_counted(series, wording)}, last {last}" if last else _counted(series, wording)


def numbered(unit: str) -> Callable[[Raw, int], str]:
    """Names a place by the line's own step or epoch, or else by its position."""

    def place(line: Raw, position: int) -> str:
        number = line.get(unit)
        return f"{unit} {number}" if number is not None else f"value {position + 1}"

    return place


def nothing(line: Raw) -> str:
    """For kinds whose last line says nothing worth showing."""
    return ""
