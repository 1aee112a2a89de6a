"""Counts the predictions that two runs do not agree on, row for row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from operator import sub
from typing import Any

from reprokit.tolerance import Tolerance
from reprokit.verify.read.evaluation_columns import BLOCK, EvaluationColumn, decoder

NearEnough = Callable[[list[Any], list[Any]], bool] | None  # None: only the same bits are
Labels = Callable[[list[Any]], str] | None  # None where a prediction is its values


@dataclass(frozen=True)
class PredictionPair:
    """A prediction on both sides: which one it is, from 0, and what stands there."""

    number: int
    left: str
    right: str


@dataclass
class Inconsistencies:
    """What came out of comparing two columns."""

    compared: int = 0
    labels: int = 0  # predictions with another label
    bits: int = 0  # predictions with other bits
    first_label: PredictionPair | None = None
    first_bits: PredictionPair | None = None
    beyond: int = 0  # of those with other bits, the ones that no tolerance accepts
    first_beyond: PredictionPair | None = None
    largest: float = 0.0  # difference of two numbers; NaN against a number is infinite
    largest_place: PredictionPair | None = None

    def compare(
        self,
        left: EvaluationColumn,
        right: EvaluationColumn,
        form: str,
        names: list[str] | None,
        tolerance: Tolerance | None = None,
    ) -> None:
        """Take in two columns of the same type, as far as both go. Labels are names: no tolerance is for them."""
        per_row, label = predictions_of_row(left, form), labels(form, names)
        near = None if tolerance is None or form == "labels" else partial(_near, tolerance, left.facts.dtype, label)
        with left.open() as (file, width), right.open() as (other_file, other_width):
            elements = max(1, math.prod(left.facts.shape[1:]))
            sizes = width // elements, other_width // elements
            size = max(sizes)
            unit, decode = size * elements // per_row, decoder(left.facts.dtype, size)
            one, other = _PaddedTexts(file, sizes[0], size), _PaddedTexts(other_file, sizes[1], size)
            remaining = min(left.count, right.count) * per_row if unit else 0
            while remaining:
                some = min(max(1, BLOCK // unit), remaining)
                pair = one.read(some * unit), other.read(some * unit)
                if len(pair[0]) != len(pair[1]):
                    raise right.damaged("changed while it was read")
                _compare_block(self, *pair, unit, decode, label, near)
                remaining -= some


@dataclass(frozen=True)
class _PaddedTexts:
    """Texts that are as wide as the longest of their run, made as wide as the other run's."""

    file: BufferedReader
    size: int
    wanted: int

    def read(self, length: int) -> bytes:
        if self.size == self.wanted:
            return self.file.read(length)
        data = self.file.read(length // self.wanted * self.size)
        starts = range(0, len(data), self.size)
        return b"".join([data[start : start + self.size].ljust(self.wanted, b"\0") for start in starts])


def _compare_block(
    found: Inconsistencies,
    left: bytes,
    right: bytes,
    unit: int,
    decode: Callable[[bytes], list[Any]],
    label: Labels,
    near: NearEnough,
) -> None:
    count = len(left) // unit
    if left != right:
        one, other = decode(left), decode(right)
        each = len(one) // count
        for position in range(count):
            if left[position * unit : (position + 1) * unit] != right[position * unit : (position + 1) * unit]:
                values = slice(position * each, (position + 1) * each)
                _note(found, found.compared + position, one[values], other[values], label, near)
        _measure(found, one, other, each)
    found.compared += count


def _note(
    found: Inconsistencies, number: int, left: list[Any], right: list[Any], label: Labels, near: NearEnough
) -> None:
    """One prediction whose bits differ."""
    found.bits += 1
    if found.first_bits is None:
        found.first_bits = PredictionPair(number, *_told_apart(left, right))
    labels = (label(left), label(right)) if label is not None else None
    if labels is None or labels[0] != labels[1]:
        found.labels += 1
        if found.first_label is None:
            found.first_label = PredictionPair(number, *(labels or _told_apart(left, right)))
    if near is None or not near(left, right):
        found.beyond += 1
        if found.first_beyond is None:
            apart = labels if labels is not None and labels[0] != labels[1] else _told_apart(left, right)
            found.first_beyond = PredictionPair(number, *apart)


def _near(tolerance: Tolerance, dtype: str, label: Labels, left: list[Any], right: list[Any]) -> bool:
    """Return whether all numbers of a prediction are near enough and mean the same label; texts are the same or not."""
    if label is not None and not tolerance.accepts_any_number and label(left) != label(right):
        return False
    for one, other in zip(left, right, strict=True):
        are_numbers = isinstance(one, int | float) and isinstance(other, int | float)
        if not (tolerance.accepts(one, other, dtype) if are_numbers else one == other):
            return False
    return True


def _measure(found: Inconsistencies, left: list[Any], right: list[Any], each: int) -> None:
    """The largest difference of the numbers of a block."""
    if not isinstance(left[0], float):
        return  # labels
    distances = list(map(abs, map(sub, left, right)))
    if not math.isfinite(sum(distances)):
        distances = [_distance(one, other) for one, other in zip(left, right, strict=True)]
    largest = max(distances)
    if largest > found.largest:
        position = distances.index(largest)
        place = PredictionPair(found.compared + position // each, repr(left[position]), repr(right[position]))
        found.largest, found.largest_place = largest, place


def _distance(left: float, right: float) -> float:
    """Return a distance where infinities or NaN are: 0 between equals, infinite between NaN and a number."""
    if left == right or (left != left and right != right):
        return 0.0
    distance = abs(left - right)
    return distance if distance == distance else math.inf


def _told_apart(left: list[Any], right: list[Any]) -> tuple[str, str]:
    """Return the first two values that differ."""
    pairs = [(repr(one), repr(other)) for one, other in zip(left, right, strict=True)]
    return next(((one, other) for one, other in pairs if one != other), ("NaN", "NaN of other bits"))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def predictions_of_row(column: EvaluationColumn, form: str) -> int:
    """How many predictions a row holds: labels and probabilities one by one, scores by class, others as a whole."""
    shape = column.facts.shape[1:]
    if form in ("labels", "probability"):
        return max(1, math.prod(shape))
    return max(1, math.prod(shape[:-1])) if form == "scores" else 1


def labels(form: str, names: list[str] | None) -> Labels:
    """Return how the values of one prediction become its label, as the agent's scores.py does it."""
    if form == "scores":
        return lambda values: _name(_largest(values), names)
    if form == "probability":
        return lambda values: str(int(values[0] > 0.5))
    if form == "multilabel":
        return lambda values: "".join(str(int(value > 0.5)) for value in values)
    return (lambda values: _shown(values[0])) if form == "labels" else None


def _largest(values: list[Any]) -> int:
    total = sum(values)
    if total != total:  # infinities of both signs, or NaN
        for position, value in enumerate(values):
            if value != value:
                return position
    return values.index(max(values))


def _name(position: int, names: list[str] | None) -> str:
    return names[position] if names is not None and position < len(names) else str(position)
