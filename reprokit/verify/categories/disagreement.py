"""Counts the predictions in which two runs differ, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from operator import sub
from typing import Any

from reprokit.core.tolerance import Tolerance
from reprokit.verify.read.evaluation_columns import BLOCK, EvaluationColumn, decoder

NearEnough = Callable[[list[Any], list[Any]], bool] | None  # None: only equal bits are
Labels = Callable[[list[Any]], str] | None  # None if a prediction has no label but its values


@dataclass(frozen=True)
class PredictionPair:
    """A prediction's number, from 0, and its text on both sides."""

    number: int
    left: str
    right: str


@dataclass
class Inconsistencies:
    """The result of comparing two columns."""

    compared: int = 0
    labels: int = 0  # predictions with another label
    bits: int = 0  # predictions with other bits
    first_label: PredictionPair | None = None
    first_bits: PredictionPair | None = None
    beyond: int = 0  # predictions with other bits that the tolerance does not accept
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
        """Compare two columns of the same type up to the shorter one's end; labels have no tolerance."""
        per_row, label = predictions_of_row(left, form), labels(form, names)
        near_enough = (
            None if tolerance is None or form == "labels" else partial(_is_near, tolerance, left.facts.dtype, label)
        )
        with left.open() as (file, width), right.open() as (other_file, other_width):
            elements = max(1, math.prod(left.facts.shape[1:]))
            sizes = width // elements, other_width // elements
            size = max(sizes)
            prediction_size, decode = size * elements // per_row, decoder(left.facts.dtype, size)
            left_reader, right_reader = _PaddedTexts(file, sizes[0], size), _PaddedTexts(other_file, sizes[1], size)
            remaining = min(left.count, right.count) * per_row if prediction_size else 0
            while remaining:
                count = min(max(1, BLOCK // prediction_size), remaining)
                blocks = left_reader.read(count * prediction_size), right_reader.read(count * prediction_size)
                if len(blocks[0]) != len(blocks[1]):
                    raise right.damaged("changed while it was read")
                _compare_block(self, *blocks, prediction_size, decode, label, near_enough)
                remaining -= count


@dataclass(frozen=True)
class _PaddedTexts:
    """Reads texts, as wide as a run's longest one, padded to the width of the other run's."""

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
    result: Inconsistencies,
    left: bytes,
    right: bytes,
    prediction_size: int,
    decode: Callable[[bytes], list[Any]],
    label: Labels,
    near_enough: NearEnough,
) -> None:
    count = len(left) // prediction_size
    if left != right:
        left_values, right_values = decode(left), decode(right)
        values_per_prediction = len(left_values) // count
        for position in range(count):
            if (
                left[position * prediction_size : (position + 1) * prediction_size]
                != right[position * prediction_size : (position + 1) * prediction_size]
            ):
                values = slice(position * values_per_prediction, (position + 1) * values_per_prediction)
                _add_difference(
                    result, result.compared + position, left_values[values], right_values[values], label, near_enough
                )
        _update_largest(result, left_values, right_values, values_per_prediction)
    result.compared += count


def _add_difference(
    result: Inconsistencies, number: int, left: list[Any], right: list[Any], label: Labels, near_enough: NearEnough
) -> None:
    """Count one prediction whose bits differ."""
    result.bits += 1
    if result.first_bits is None:
        result.first_bits = PredictionPair(number, *_distinct_texts(left, right))
    labels = (label(left), label(right)) if label is not None else None
    if labels is None or labels[0] != labels[1]:
        result.labels += 1
        if result.first_label is None:
            result.first_label = PredictionPair(number, *(labels or _distinct_texts(left, right)))
    if near_enough is None or not near_enough(left, right):
        result.beyond += 1
        if result.first_beyond is None:
            texts = labels if labels is not None and labels[0] != labels[1] else _distinct_texts(left, right)
            result.first_beyond = PredictionPair(number, *texts)


def _is_near(tolerance: Tolerance, dtype: str, label: Labels, left: list[Any], right: list[Any]) -> bool:
    """Return whether a prediction's numbers are within the tolerance and have the same label; texts must be equal."""
    if label is not None and not tolerance.accepts_any_number and label(left) != label(right):
        return False
    for left_value, right_value in zip(left, right, strict=True):
        are_numbers = isinstance(left_value, int | float) and isinstance(right_value, int | float)
        if not (tolerance.accepts(left_value, right_value, dtype) if are_numbers else left_value == right_value):
            return False
    return True


def _update_largest(result: Inconsistencies, left: list[Any], right: list[Any], values_per_prediction: int) -> None:
    """Update the largest difference with the numbers of a block."""
    if not isinstance(left[0], float):
        return  # labels have no distance
    distances = list(map(abs, map(sub, left, right)))
    if not math.isfinite(sum(distances)):
        distances = [_distance(left_value, right_value) for left_value, right_value in zip(left, right, strict=True)]
    largest = max(distances)
    if largest > result.largest:
        position = distances.index(largest)
        place = PredictionPair(
            result.compared + position // values_per_prediction, repr(left[position]), repr(right[position])
        )
        result.largest, result.largest_place = largest, place


def _distance(left: float, right: float) -> float:
    """Return a distance with infinities or NaN: 0 between equal values, infinite between NaN and a number."""
    if left == right or (left != left and right != right):
        return 0.0
    distance = abs(left - right)
    return distance if distance == distance else math.inf


def _distinct_texts(left: list[Any], right: list[Any]) -> tuple[str, str]:
    """Return the texts of the first two values that differ."""
    pairs = [(repr(left_text), repr(right_text)) for left_text, right_text in zip(left, right, strict=True)]
    return next(
        ((left_text, right_text) for left_text, right_text in pairs if left_text != right_text),
        ("NaN", "NaN of other bits"),
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def predictions_of_row(column: EvaluationColumn, form: str) -> int:
    """Return the predictions in a row: each label or probability, each row of class scores, else the whole row."""
    shape = column.facts.shape[1:]
    if form in ("labels", "probability"):
        return max(1, math.prod(shape))
    return max(1, math.prod(shape[:-1])) if form == "scores" else 1


def labels(form: str, names: list[str] | None) -> Labels:
    """Return a function from a prediction's values to its label, as the agent's scores.py computes it."""
    if form == "scores":
        return lambda values: _label_name(_largest(values), names)
    if form == "probability":
        return lambda values: str(int(values[0] > 0.5))
    if form == "multilabel":
        return lambda values: "".join(str(int(value > 0.5)) for value in values)
    return (lambda values: _shown(values[0])) if form == "labels" else None


def _largest(values: list[Any]) -> int:
    total = sum(values)
    if total != total:  # true for infinities of both signs, or NaN
        for position, value in enumerate(values):
            if value != value:
                return position
    return values.index(max(values))


def _label_name(position: int, names: list[str] | None) -> str:
    return names[position] if names is not None and position < len(names) else str(position)
