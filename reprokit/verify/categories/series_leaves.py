"""Turns a matched pair of series into a leaf, worded for its kind of lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from reprokit.core import dtypes
from reprokit.core.difference import Difference, Side, Verdict, bookkeeping, different, group, missing, more_bookkeeping
from reprokit.core.tolerance import Tolerance, ulps
from reprokit.verify.bookkeeping.recognition import Contexts, recognized
from reprokit.verify.categories.file_bookkeeping import value_name
from reprokit.verify.categories.match import NAMED, QUANTITY, Raw, RunPair, SeriesPair
from reprokit.verify.read.metric_lines import MetricValue, shown
from reprokit.verify.read.scan import ScannedSeries, SeriesKey, order_of

KINDS = {"record": "recording", "replay": "replay", "run": "run"}  # of runs
FLOATS = {"float16": 4, "bfloat16": 4, "float32": 8, "float64": 16}  # number of hexadecimal digits
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|\b[0-9a-f]{16}\b")
_RANDOM_STATE = "random state"  # prefix of leaves whose digests no tolerance applies to
_NOT_IN_FRAME = ("value", "values", "k", "p", "n", "t")  # keys of a line that are not compared as its frame


@dataclass(frozen=True)
class LinePoint:
    """The place of the first difference in two lines, and the text of each side."""

    where: str
    left: str
    right: str


@dataclass(frozen=True)
class LineWording:
    """How leaves describe one kind of line."""

    noun: str  # "loss"; empty if the series' own name suffices
    unit: str  # "step": the unit in which lines are counted
    place: Callable[[Raw, int], str]  # returns a line's place
    text: Callable[[Raw], str]  # returns a line's content for a summary; may be empty
    # Returns the first difference of two lines at this position, if their texts do not show it.
    point: Callable[[Raw, Raw, int], LinePoint] | None = None

    def difference(self, left: Raw, right: Raw, position: int) -> LinePoint:
        """Return the first difference of two lines at this position."""
        if self.point is not None:
            return self.point(left, right, position)
        return LinePoint(self.place(left, position), self.text(left), self.text(right))


def title(key: SeriesKey, noun: str) -> str:
    """Return the name of a series as users read it."""
    name = noun if noun and noun == key.name else f"{noun} {key.name}".strip()
    return f"{name} of process {key.process}"


def leaf(pair: SeriesPair, wording: LineWording) -> Difference:
    """Return the result of comparing one series."""
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
    counts = _line_count(pair.left, wording), _line_count(pair.right, wording)
    return different(name, *counts, meaning, lacking=side)


def _line_count(series: ScannedSeries | None, wording: LineWording) -> str:
    return counted(series.count, wording.unit) if series is not None else ""


def counted(number: int, unit: str) -> str:
    """Return a number with its unit in the plural; of "call of fit" the first word takes it."""
    first, _, rest = unit.partition(" ")
    return f"{number} {first}{'' if number == 1 else 's'} {rest}".rstrip()


def _summary(series: ScannedSeries | None, wording: LineWording) -> str:
    return summary(series, wording) if series is not None else ""


def summary(series: ScannedSeries, wording: LineWording) -> str:
    """Return the number of lines and the content of the last one."""
    last = wording.text(series.last) if series.last is not None else ""
    if last and series.count == 1:
        return last
    return f"{_line_count(series, wording)}, last {last}" if last else _line_count(series, wording)


def numbered(unit: str) -> Callable[[Raw, int], str]:
    """Return a function that names a place by the line's step or epoch, or by its position."""

    def place(line: Raw, position: int) -> str:
        number = line.get(unit)
        return f"{unit} {number}" if number is not None else f"value {position + 1}"

    return place


def at_end(line: Raw, position: int) -> str:
    """Return the place of a line that is written once at the end of a process."""
    return "the end"


def nothing(line: Raw) -> str:
    """Return an empty text, for kinds whose last line is not worth showing."""
    return ""


@dataclass
class ValueComparison:
    """The result of comparing two series value by value."""

    values: int = 0
    differing: int = 0
    largest: float = -1.0
    place: str = ""  # of the largest distance, with its numbers
    beyond: tuple[str, str, str] | None = None  # place and both values of the first difference beyond the tolerance


def judged_leaf(runs: RunPair, pair: SeriesPair, wording: LineWording) -> Difference:
    """Return the leaf of a series, compared bit by bit, and if it differs by its names or by its tolerance."""
    bitwise, tolerance = leaf(pair, wording), runs.accepted(QUANTITY.get(pair.key.kind, ""))
    if not bitwise.verdict.differs or pair.left is None or pair.right is None:
        return bitwise
    if tolerance is None and pair.key.kind not in NAMED:
        return bitwise
    left, right = (sorted(lines[pair.key], key=order_of) for lines in runs.lines)
    is_read = (len(left), len(right)) == (pair.left.count, pair.right.count)
    if not is_read and tolerance is not None:
        return replace(bitwise, detail=f"{bitwise.detail}; too many values to be judged by a tolerance")
    if not is_read or pair.left.count != pair.right.count:
        return bitwise
    name = title(pair.key, wording.noun)
    recognized_values = _bookkeeping(name, pair.key.name, left, right, runs.contexts)
    if recognized_values:
        return group(name, recognized_values)
    if tolerance is None:
        return bitwise
    comparison = _compare_values(left, right, tolerance)
    return bitwise if comparison is None else _values_leaf(name, comparison, tolerance)


def _bookkeeping(
    title: str, series: str, left: list[Raw], right: list[Raw], contexts: Contexts
) -> tuple[Difference, ...]:
    """Return a leaf for each name of values that differ if all of them are bookkeeping by their names; else none."""
    found: dict[str, list[Difference]] = {}
    for left_line, right_line in zip(left, right, strict=True):
        values = list(_values(left_line)), list(_values(right_line))
        if _without_values(left_line) != _without_values(right_line) or len(values[0]) != len(values[1]):
            return ()
        for (name, where, value), (_, other_where, other) in zip(*values, strict=True):
            texts = repr(number(value)), repr(number(other))
            kind = None if value == other else recognized(value_name(name or series), *texts, contexts)
            if where != other_where or (value != other and kind is None):
                return ()
            if kind is not None:
                found.setdefault(name, []).append(bookkeeping(f"{title}{where}", *texts, kind))
    return tuple(leaf for leaves in found.values() for leaf in _first_and_rest(leaves))


def _first_and_rest(leaves: list[Difference]) -> Iterator[Difference]:
    yield leaves[0]
    rest = Counter(leaf.kind for leaf in leaves[1:] if leaf.kind is not None)
    yield from more_bookkeeping(leaves[0].name, rest)


def _values_leaf(name: str, comparison: ValueComparison, tolerance: Tolerance) -> Difference:
    count = f"{comparison.differing} of {comparison.values} values of {name} are not bitwise the same"
    figures = {"values": comparison.values, "differing": comparison.differing}
    if comparison.beyond is not None:
        where, left, right = comparison.beyond
        meaning = f"{name} is beyond the tolerance ({tolerance}) first at {where}: {left} against {right}"
        meaning = f"{meaning}; {count}"
        return different(name, left, right, meaning, figures=figures)
    meaning = f"{count}, all within {tolerance}; {comparison.place}"
    return different(name, "", "", meaning, Verdict.TOLERATED, figures)


def _compare_values(left: list[Raw], right: list[Raw], tolerance: Tolerance) -> ValueComparison | None:
    """Compare two series value by value; None if they differ in more than values."""
    comparison = ValueComparison()
    for number, (left_line, right_line) in enumerate(zip(left, right, strict=True)):
        if _without_values(left_line) != _without_values(right_line):
            return None
        values = [{where: value for _, where, value in _values(line)} for line in (left_line, right_line)]
        if values[0].keys() != values[1].keys():
            return None
        for name, value in values[0].items():
            _compare_value(comparison, f"{place(left_line, number, 'line')}{name}", value, values[1][name], tolerance)
    return comparison if comparison.differing else None


def _without_values(line: Raw) -> Raw:
    return {key: value for key, value in line.items() if key not in _NOT_IN_FRAME}


def _values(line: Raw) -> Iterator[tuple[str, str, MetricValue]]:
    """Yield each value of a line with its name and the text that identifies it."""
    if "value" in line:
        yield "", "", msgspec.convert(line["value"], MetricValue)
    for name, value in line.get("values", {}).items():
        is_list = isinstance(value, list)
        for epoch, item in enumerate(value if is_list else [value]):
            yield name, f", {name}{f' of epoch {epoch}' if is_list else ''}", msgspec.convert(item, MetricValue)


def place(line: Raw, position: int, unit: str = "value") -> str:
    """Return the place of a value by its line's epoch or step, or by its position."""
    parts = [f"{name} {line[name]}" for name in ("epoch", "step") if line.get(name) is not None]
    return ", ".join(parts) or f"{unit} {position + 1}"


def _compare_value(
    comparison: ValueComparison, where: str, left: MetricValue, right: MetricValue, tolerance: Tolerance
) -> None:
    comparison.values += 1
    if (left.dtype, left.bits) == (right.dtype, right.bits) and (left.bits or left == right):
        return
    comparison.differing += 1
    left_number, right_number = number(left), number(right)
    same_type = left.dtype == right.dtype
    if (
        left_number is None
        or right_number is None
        or not same_type
        or not tolerance.accepts(left_number, right_number, left.dtype)
    ):
        comparison.beyond = comparison.beyond or (where, shown(left), shown(right))
        return
    distance = abs(left_number - right_number)
    if distance > comparison.largest:  # false for NaN, which has no distance
        comparison.largest = distance
        ulp_distance = ulps(left_number, right_number, left.dtype)
        comparison.place = f"the largest distance is {distance:.6g}, {ulp_distance} ULP, at {where}"


def number(value: MetricValue) -> float | None:
    """Return the number of a value; None for texts and truth values."""
    if value.dtype in FLOATS and value.bits is not None and len(value.bits) == FLOATS[value.dtype]:
        return dtypes.decoded(dtypes.named(value.dtype), int(value.bits, 16))
    if isinstance(value.decimal, bool) or value.text is not None:
        return None
    return value.decimal


def judged(tree: Difference, tolerance: Tolerance | None) -> Difference:
    """Return the tree with leaves of digests judged: tolerated if any number is accepted, else with a reason."""
    if tolerance is None or not tree.verdict.differs or tree.name.startswith(_RANDOM_STATE):
        return tree
    if tree.judged is None:
        return replace(tree, children=tuple(judged(child, tolerance) for child in tree.children), detail="")
    without_digests = _DIGEST.sub("*", tree.left), _DIGEST.sub("*", tree.right)
    if (
        tree.judged is not Verdict.DIFFERENT
        or without_digests[0] != without_digests[1]
        or "*" not in without_digests[0]
    ):
        return tree
    if tolerance.accepts_any_number:
        return replace(tree, judged=Verdict.TOLERATED, detail="any values were accepted; only their digests are known")
    return replace(tree, detail=f"{tree.detail}; only digests are known, which no tolerance can judge".lstrip("; "))
