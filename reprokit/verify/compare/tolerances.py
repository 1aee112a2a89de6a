"""Judges what differs in its bits by the tolerances that were asked for: value by value, and what has no values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from reprokit import dtypes
from reprokit.difference import Difference, Verdict
from reprokit.rundir import RunDirectory
from reprokit.tolerance import Tolerance, Tolerances, ulps
from reprokit.verify.compare.match import Matched, Raw, SeriesPair
from reprokit.verify.compare.series_leaves import Wording, leaf, title
from reprokit.verify.read.metric_lines import MetricValue, shown
from reprokit.verify.read.scan import SeriesKey, collect, order_of

QUANTITY = {"loss": "loss", "log": "metrics", "epoch": "metrics", "history": "metrics", "evaluate": "scores"}

FLOATS = {"float16": 4, "bfloat16": 4, "float32": 8, "float64": 16}  # hexadecimal digits
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|\b[0-9a-f]{16}\b")
_NO_NUMBERS = "random state"  # the name of digests of what is near nothing else
_APART = ("value", "values", "k", "p", "n", "t")  # what of a line is no part of its frame


@dataclass
class _Found:
    """What comparing two series value by value came to."""

    values: int = 0
    differing: int = 0
    largest: float = -1.0
    place: str = ""  # of the largest distance, with its figures
    beyond: tuple[str, str, str] | None = None  # the first value that is not accepted: where, left, right


class Near:
    """The lines of the series that differ, where a tolerance was asked for; read in one pass over each run."""

    def __init__(self, runs: tuple[RunDirectory, RunDirectory], matched: Matched, tolerances: Tolerances):
        self.tolerances = tolerances
        wanted: dict[SeriesKey, range] = {}
        for pair in matched.of(*QUANTITY):
            if self._of(pair) is not None and pair.left is not None and pair.right is not None and not pair.same:
                wanted[pair.key] = range(max(pair.left.count, pair.right.count))
        self._lines = [collect(run, wanted) for run in runs]

    def _of(self, pair: SeriesPair) -> Tolerance | None:
        return self.tolerances.of.get(QUANTITY.get(pair.key.kind, ""))

    def leaf(self, pair: SeriesPair, wording: Wording) -> Difference:
        """The leaf of a series: bit for bit, and where that differs, within the tolerance or beyond it."""
        bitwise, tolerance = leaf(pair, wording), self._of(pair)
        if tolerance is None or not bitwise.verdict.differs or pair.left is None or pair.right is None:
            return bitwise
        left, right = (sorted(lines[pair.key], key=order_of) for lines in self._lines)
        if (len(left), len(right)) != (pair.left.count, pair.right.count):
            return replace(bitwise, detail=f"{bitwise.detail}; too many values to be judged by a tolerance")
        if pair.left.count != pair.right.count:
            return bitwise
        found = _compared(left, right, tolerance)
        return bitwise if found is None else _leaf(title(pair.key, wording.noun), found, tolerance)


def _leaf(name: str, found: _Found, tolerance: Tolerance) -> Difference:
    count = f"{found.differing} of {found.values} values of {name} are not bitwise the same"
    figures = {"values": found.values, "differing": found.differing}
    if found.beyond is not None:
        where, left, right = found.beyond
        meaning = f"{name} is beyond the tolerance ({tolerance}) first at {where}: {left} against {right}"
        meaning = f"{meaning}; {count}"
        return Difference(name, Verdict.DIFFERENT, left, right, meaning, figures=figures, is_sentence=True)
    meaning = f"{count}, all within {tolerance}; {found.place}"
    return Difference(name, Verdict.TOLERATED, detail=meaning, figures=figures, is_sentence=True)


def _compared(left: list[Raw], right: list[Raw], tolerance: Tolerance) -> _Found | None:
    """Every value of two series; None where they differ in more than values."""
    found = _Found()
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        if _frame(one) != _frame(other):
            return None
        values = dict(_values(one)), dict(_values(other))
        if values[0].keys() != values[1].keys():
            return None
        for name, value in values[0].items():
            _add(found, f"{_place(one, number)}{name}", value, values[1][name], tolerance)
    return found if found.differing else None


def _frame(line: Raw) -> Raw:
    return {key: value for key, value in line.items() if key not in _APART}


def _values(line: Raw) -> Iterator[tuple[str, MetricValue]]:
    """Every value of a line, by what tells it from the others."""
    if "value" in line:
        yield "", _value(line["value"])
    for name, value in line.get("values", {}).items():
        if isinstance(value, list):
            yield from ((f", {name} of epoch {epoch}", _value(one)) for epoch, one in enumerate(value))
        else:
            yield f", {name}", _value(value)


def _value(raw: dict[str, Any]) -> MetricValue:
    return MetricValue(**{key: raw[key] for key in ("dtype", "bits", "decimal", "text") if key in raw})


def _place(line: Raw, number: int) -> str:
    parts = [f"{unit} {line[unit]}" for unit in ("epoch", "step") if line.get(unit) is not None]
    return ", ".join(parts) or f"line {number + 1}"


def _add(found: _Found, where: str, left: MetricValue, right: MetricValue, tolerance: Tolerance) -> None:
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
    """The number that a value is; None for texts and truth values."""
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
