"""Turns a matched pair of series into a leaf, in the words of its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from reprokit import dtypes
from reprokit.difference import Difference, Side, Verdict, different, missing
from reprokit.tolerance import Tolerance, ulps
from reprokit.verify.compare.match import QUANTITY, Raw, RunPair, SeriesPair
from reprokit.verify.read.metric_lines import MetricValue, shown
from reprokit.verify.read.scan import ScannedSeries, SeriesKey, order_of

KINDS = {"record": "recording", "replay": "replay", "run": "run"}  # of runs
FLOATS = {"float16": 4, "bfloat16": 4, "float32": 8, "float64": 16}  # hexadecimal digits
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|\b[0-9a-f]{16}\b")
_NO_NUMBERS = "random state"  # the name of digests of what is near nothing else
_APART = ("value", "values", "k", "p", "n", "t")  # what of a line is no part of its frame


@dataclass(frozen=True)
class LinePoint:
    """Where two lines differ and what stands there on each side."""

    where: str
    left: str
    right: str


@dataclass(frozen=True)
class LineWording:
    """How one kind of line is spoken of."""

    noun: str  # "loss"; "" where the series' own name says it
    unit: str  # "step": what the lines are counted in
    place: Callable[[Raw, int], str]  # where a line stands
    text: Callable[[Raw], str]  # what it says, as in a summary; may be empty
    # The first difference of two lines at this position, where that is not all of what they say.
    point: Callable[[Raw, Raw, int], LinePoint] | None = None

    def difference(self, left: Raw, right: Raw, position: int) -> LinePoint:
        """Return where two lines at this position differ first, and in what."""
        if self.point is not None:
            return self.point(left, right, position)
        return LinePoint(self.place(left, position), self.text(left), self.text(right))


def title(key: SeriesKey, noun: str) -> str:
    """Return the name of a series for people."""
    name = noun if noun and noun == key.name else f"{noun} {key.name}".strip()
    return f"{name} of process {key.process}"


def leaf(pair: SeriesPair, wording: LineWording) -> Difference:
    """Return what came out of comparing one series."""
    name = title(pair.key, wording.noun)
    left, right = _summary(pair.left, wording), _summary(pair.right, wording)
    if pair.left is None or pair.right is None:
        return missing(name, left, right, f"only the {'left' if left else 'right'} run recorded it")
    if pair.position is None:
        return Difference(name, Verdict.IDENTICAL, left, right)
    if pair.left_line is None and pair.right_line is None:
        meaning = f"{name} differs at or after line {pair.position + 1} of its kind"
        return different(name, left, right, meaning)
    if pair.left_line is None or pair.right_line is None:
        return _ends_early(pair, wording, name)
    point = wording.difference(pair.left_line, pair.right_line, pair.position)
    meaning = f"{name} differs first at {point.where}: {point.left} against {point.right}"
    return different(name, point.left, point.right, meaning)


def _ends_early(pair: SeriesPair, wording: LineWording, name: str) -> Difference:
    line = pair.left_line if pair.left_line is not None else pair.right_line
    assert line is not None
    assert pair.position is not None
    side: Side = "left" if pair.left_line is None else "right"
    meaning = f"{name} differs first at {wording.place(line, pair.position)}: the {side} run ends before it"
    counts = _counted(pair.left, wording), _counted(pair.right, wording)
    return different(name, *counts, meaning, lacking=side)


def _counted(series: ScannedSeries | None, wording: LineWording) -> str:
    return counted(series.count, wording.unit) if series is not None else ""


def counted(number: int, unit: str) -> str:
    """Return a number of things; of "call of fit" the first word takes the plural."""
    first, _, rest = unit.partition(" ")
    return f"{number} {first}{'' if number == 1 else 's'} {rest}".rstrip()


def _summary(series: ScannedSeries | None, wording: LineWording) -> str:
    return summary(series, wording) if series is not None else ""


def summary(series: ScannedSeries, wording: LineWording) -> str:
    """Return how many lines, and the last of them."""
    last = wording.text(series.last) if series.last is not None else ""
    if last and series.count == 1:
        return last
    return f"{_counted(series, wording)}, last {last}" if last else _counted(series, wording)


def numbered(unit: str) -> Callable[[Raw, int], str]:
    """Names a place by the line's own step or epoch, or else by its position."""

    def place(line: Raw, position: int) -> str:
        number = line.get(unit)
        return f"{unit} {number}" if number is not None else f"value {position + 1}"

    return place


def at_end(line: Raw, position: int) -> str:
    """For what stands there once, at the end of a process."""
    return "the end"


def nothing(line: Raw) -> str:
    """For kinds whose last line says nothing worth showing."""
    return ""


@dataclass
class ValueComparison:
    """What comparing two series value by value came to."""

    values: int = 0
    differing: int = 0
    largest: float = -1.0
    place: str = ""  # of the largest distance, with its figures
    beyond: tuple[str, str, str] | None = None  # the first value that is not accepted: where, left, right


def judged_leaf(runs: RunPair, pair: SeriesPair, wording: LineWording) -> Difference:
    """Return the leaf of a series: bit for bit, and where that differs, within the tolerance or beyond it."""
    bitwise, tolerance = leaf(pair, wording), runs.accepted(QUANTITY.get(pair.key.kind, ""))
    if tolerance is None or not bitwise.verdict.differs or pair.left is None or pair.right is None:
        return bitwise
    left, right = (sorted(lines[pair.key], key=order_of) for lines in runs.lines)
    if (len(left), len(right)) != (pair.left.count, pair.right.count):
        return replace(bitwise, detail=f"{bitwise.detail}; too many values to be judged by a tolerance")
    if pair.left.count != pair.right.count:
        return bitwise
    found = _compared(left, right, tolerance)
    return bitwise if found is None else _leaf(title(pair.key, wording.noun), found, tolerance)


def _leaf(name: str, found: ValueComparison, tolerance: Tolerance) -> Difference:
    count = f"{found.differing} of {found.values} values of {name} are not bitwise the same"
    figures = {"values": found.values, "differing": found.differing}
    if found.beyond is not None:
        where, left, right = found.beyond
        meaning = f"{name} is beyond the tolerance ({tolerance}) first at {where}: {left} against {right}"
        meaning = f"{meaning}; {count}"
        return different(name, left, right, meaning, figures=figures)
    meaning = f"{count}, all within {tolerance}; {found.place}"
    return different(name, "", "", meaning, Verdict.TOLERATED, figures)


def _compared(left: list[Raw], right: list[Raw], tolerance: Tolerance) -> ValueComparison | None:
    """Return every value of two series; None where they differ in more than values."""
    found = ValueComparison()
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        if _frame(one) != _frame(other):
            return None
        values = dict(_values(one)), dict(_values(other))
        if values[0].keys() != values[1].keys():
            return None
        for name, value in values[0].items():
            _add(found, f"{place(one, number, 'line')}{name}", value, values[1][name], tolerance)
    return found if found.differing else None


def _frame(line: Raw) -> Raw:
    return {key: value for key, value in line.items() if key not in _APART}


def _values(line: Raw) -> Iterator[tuple[str, MetricValue]]:
    """Yield every value of a line, by what tells it from the others."""
    if "value" in line:
        yield "", msgspec.convert(line["value"], MetricValue)
    for name, value in line.get("values", {}).items():
        is_list = isinstance(value, list)
        for epoch, one in enumerate(value if is_list else [value]):
            yield f", {name}{f' of epoch {epoch}' if is_list else ''}", msgspec.convert(one, MetricValue)


def place(line: Raw, position: int, unit: str = "value") -> str:
    """Return where a value stands, by its line's own account, or else by its position."""
    parts = [f"{name} {line[name]}" for name in ("epoch", "step") if line.get(name) is not None]
    return ", ".join(parts) or f"{unit} {position + 1}"


def _add(found: ValueComparison, where: str, left: MetricValue, right: MetricValue, tolerance: Tolerance) -> None:
    found.values += 1
    if (left.dtype, left.bits) == (right.dtype, right.bits) and (left.bits or left == right):
        return
    found.differing += 1
    one, other = number(left), number(right)
    same_type = left.dtype == right.dtype
    if one is None or other is None or not same_type or not tolerance.accepts(one, other, left.dtype):
        found.beyond = found.beyond or (where, shown(left), shown(right))
        return
    apart = abs(one - other)
    if apart > found.largest:  # of NaN against NaN no distance is known
        found.largest = apart
        units = ulps(one, other, left.dtype)
        found.place = f"the largest distance is {apart:.6g}, {units} ULP, at {where}"


def number(value: MetricValue) -> float | None:
    """Return the number that a value is; None for texts and truth values."""
    if value.dtype in FLOATS and value.bits is not None and len(value.bits) == FLOATS[value.dtype]:
        return dtypes.decoded(dtypes.named(value.dtype), int(value.bits, 16))
    if isinstance(value.decimal, bool) or value.text is not None:
        return None
    return value.decimal


def judged(tree: Difference, tolerance: Tolerance | None) -> Difference:
    """The tree with what only digests are known of judged: accepted where any number is, else with the reason."""
    if tolerance is None or not tree.verdict.differs or tree.name.startswith(_NO_NUMBERS):
        return tree
    if tree.judged is None:
        return replace(tree, children=tuple(judged(child, tolerance) for child in tree.children), detail="")
    frames = _DIGEST.sub("*", tree.left), _DIGEST.sub("*", tree.right)
    if tree.judged is not Verdict.DIFFERENT or frames[0] != frames[1] or "*" not in frames[0]:
        return tree
    if tolerance.accepts_any_number:
        return replace(tree, judged=Verdict.TOLERATED, detail="any values were accepted; only their digests are known")
    return replace(tree, detail=f"{tree.detail}; only digests are known, which no tolerance can judge".lstrip("; "))
