"""What predictions are: labels, scores of classes, or numbers; and how good. docs/format.md has the rules.

Accuracy and mean absolute error are exact: the same wherever and in whatever pieces they are computed.
"""

from __future__ import annotations

import math
import sys
from collections import Counter

from ..core.exact_values import from_float
from .samples import BOOL, FLOAT, INTEGER, Rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


CLASSIFICATION, REGRESSION = TASKS = ("classification", "regression")

# How labels come out of what was predicted.
LABELS = "labels"  # each value is one
SCORES = "scores"  # the position of the largest along the last dimension
PROBABILITY = "probability"  # 1 above a half, else 0
MULTILABEL = "multilabel"  # a row says of each label whether it applies; numbers do above a half
VALUES = "values"  # none do

HALF = 0.5
MAX_CLASSES = 10_000
_UNIT = 1126  # every finite float64 is a multiple of 2 to the power of -1126, also with its mantissa written as 53 bits
_CHUNK = 1 << 20


class TaskJudgment:
    """The task, the form of the predictions, and who said so."""

    def __init__(self, task: str, form: str, why: str) -> None:
        self.task = task
        self.form = form
        self.why = why


def judge(pred: Rows, truth: Rows | None, asked: str | None, hint: str | None) -> TaskJudgment:
    """Return the task that the script asked for, or that the framework knows, or else that the values look like."""
    for task, why in ((asked, "given"), (hint, "framework")):
        if task is not None:
            form = VALUES if task == REGRESSION else _form(pred, truth)
            return TaskJudgment(task, form, why)
    if _is_regression(pred, truth):
        return TaskJudgment(REGRESSION, VALUES, "inferred")
    return TaskJudgment(CLASSIFICATION, _form(pred, truth), "inferred")


def _is_regression(pred: Rows, truth: Rows | None) -> bool:
    if pred.kind not in (FLOAT, INTEGER) or (truth is not None and truth.kind not in (FLOAT, INTEGER)):
        return False
    if pred.kind == INTEGER:
        return truth is not None and truth.kind == FLOAT and not _is_whole(truth)
    if truth is None:
        return pred.columns == 1 or len(pred.shape) > 2
    if truth.elements != pred.elements or is_one_hot(truth) or _within_one(pred, truth):
        return False
    return truth.kind == FLOAT or not (_is_whole(pred) or (pred.columns > 1 and is_binary(truth)))


def _form(pred: Rows, truth: Rows | None) -> str:
    """Return how a classification's predictions are to be read."""
    if pred.kind == FLOAT:
        if pred.columns > 1:
            binary = truth is not None and truth.shape == pred.shape and not is_one_hot(truth)
            return MULTILABEL if binary else SCORES
        return _form_of_column(pred, truth)
    if len(pred.shape) == 2 and pred.columns > 1 and pred.kind in (BOOL, INTEGER) and is_binary(pred):
        return MULTILABEL
    return LABELS


def _form_of_column(pred: Rows, truth: Rows | None) -> str:
    """Probabilities of one class of two, labels written as floats, or margins that say nothing without their bound."""
    is_whole = _is_whole(pred)
    if pred.all_in(_is_probability) and not (is_whole and (truth is None or not is_binary(truth))):
        return PROBABILITY
    return LABELS if is_whole else VALUES


def is_one_hot(rows: Rows) -> bool:
    """Return whether each row is a 1 among zeros."""
    if len(rows.shape) != 2 or rows.columns < 2 or not is_binary(rows):
        return False
    flat, width = rows.flat(), rows.columns
    return all(flat[start : start + width].count(0) == width - 1 for start in range(0, len(flat), width))


def is_binary(rows: Rows) -> bool:
    """Return whether there are no other values than 0 and 1."""
    return rows.kind in (BOOL, INTEGER, FLOAT) and rows.all_in(lambda value: (value == 0) | (value == 1))


def _is_whole(rows: Rows) -> bool:
    return rows.all_in(lambda value: (abs(value) < 1 << 53) & (value % 1 == 0))


def _is_probability(value: Any) -> Any:
    return (value >= 0) & (value <= 1)


def _within_one(pred: Rows, truth: Rows) -> bool:
    return is_binary(truth) and pred.all_in(_is_probability)


class Accuracy:
    """Counts of right labels, in all and for each true label."""

    def __init__(self, form: str, classes: list[Any] | None) -> None:
        self._form = form
        self._classes = classes  # what the columns of scores stand for
        self._rows = [0, 0]  # right, all; of multilabel rows, where classes are counted apart
        self.right: Counter[Any] = Counter()
        self.all: Counter[Any] = Counter()

    def add(self, pred: Rows, truth: Rows) -> None:
        """Count predictions; raises ValueError where the two do not belong together."""
        if self._form == MULTILABEL:
            self._add_multilabel(_above_half(pred), _above_half(truth), pred.columns)
            return
        predicted, true = self._predicted(pred), self._true(pred, truth)
        if len(predicted) != len(true):
            raise ValueError(f"{len(predicted)} predictions, {len(true)} true values")
        self.all.update(true)
        self.right.update([one for one, other in zip(true, predicted) if one == other])

    def _predicted(self, pred: Rows) -> list[Any]:
        if self._form == SCORES:
            largest = pred.largest()
            return largest if self._classes is None else [self._classes[position] for position in largest]
        return _above_half(pred) if self._form == PROBABILITY else _labels(pred)

    def _true(self, pred: Rows, truth: Rows) -> list[Any]:
        labels = _labels(truth)
        if self._form == SCORES and truth.shape == pred.shape and is_one_hot(truth):
            return truth.largest()
        if self._form == PROBABILITY and not is_binary(truth):
            raise ValueError("nothing says which of the true labels the probabilities are of")
        if self._form == SCORES and self._classes is None and not set(labels) <= set(range(pred.shape[-1])):
            raise ValueError("nothing says which column of scores is which label")
        return labels

    def _add_multilabel(self, predicted: list[bool], true: list[bool], width: int) -> None:
        if len(predicted) != len(true):
            raise ValueError(f"{len(predicted)} predictions, {len(true)} true values")
        starts = range(0, len(true), width)
        self._rows[0] += sum(1 for start in starts if predicted[start : start + width] == true[start : start + width])
        self._rows[1] += len(starts)
        for column in range(width):
            self.all[column] += len(starts)
            pairs = zip(predicted[column::width], true[column::width])
            self.right[column] += sum(1 for one, other in pairs if one == other)

    def facts(self) -> dict[str, object]:
        """Right and all, and both for each true label in the order of the labels."""
        total = sum(self.all.values())
        if not total:
            return {}
        rows = self._rows if self._form == MULTILABEL else [sum(self.right.values()), total]
        labels = sorted(self.all, key=lambda label: (isinstance(label, str), label))[:MAX_CLASSES]
        return {"accuracy": rows, "classes": [[str(label), self.right[label], self.all[label]] for label in labels]}


def _labels(rows: Rows) -> list[Any]:
    """Return the labels that the values are; one that is no number equals no other, but is counted with its like."""
    return rows.flat() if rows.kind != FLOAT else [value if value == value else "nan" for value in rows.flat()]


def _above_half(rows: Rows) -> list[bool]:
    return [value > HALF for value in rows.flat()]


class Error:
    """The mean of the absolute differences, each rounded to float64, their sum exact, their mean rounded once."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0  # in units of 2 to the power of -_UNIT
        self._infinite = self._nan = False

    def add(self, pred: Rows, truth: Rows) -> None:
        """Take in differences; raises ValueError where the two do not belong together."""
        numbers = (BOOL, INTEGER, FLOAT)
        if pred.elements != truth.elements or pred.kind not in numbers or truth.kind not in numbers:
            raise ValueError(f"{pred.elements} predictions {pred.dtype}, {truth.elements} true values {truth.dtype}")
        self._count += pred.elements
        if pred.array is not None and truth.array is not None:
            one, other = pred.array.reshape(-1), truth.array.reshape(-1)
            for start in range(0, pred.elements, _CHUNK):
                self._add_arrays(one[start : start + _CHUNK], other[start : start + _CHUNK])
        else:
            self._add_floats([abs(float(a) - float(b)) for a, b in zip(truth.flat(), pred.flat())])

    def _add_arrays(self, pred: Any, truth: Any) -> None:
        """What _add_floats does, for arrays of NumPy: sums of mantissas by exponent."""
        numpy: Any = sys.modules["numpy"]
        with numpy.errstate(all="ignore"):
            differences = numpy.abs(truth.astype("f8") - pred.astype("f8"))
        finite = numpy.isfinite(differences)
        if not finite.all():
            self._nan = self._nan or bool(numpy.isnan(differences).any())
            self._infinite = self._infinite or bool(numpy.isinf(differences).any())
            differences = differences[finite]
        mantissas, exponents = numpy.frexp(differences)
        integers = numpy.ldexp(mantissas, 53).astype("i8")
        found, which = numpy.unique(exponents, return_inverse=True)
        high = numpy.bincount(which, integers >> 26, len(found))  # sums below 2 to the power of 53, and so exact
        low = numpy.bincount(which, integers & ((1 << 26) - 1), len(found))
        for exponent, one, other in zip(found.tolist(), high.tolist(), low.tolist()):
            self._sum += ((int(one) << 26) + int(other)) << (exponent - 53 + _UNIT)

    def _add_floats(self, differences: list[float]) -> None:
        for value in differences:
            if math.isfinite(value):
                numerator, denominator = value.as_integer_ratio()
                self._sum += numerator * ((1 << _UNIT) // denominator)
            self._nan = self._nan or value != value
            self._infinite = self._infinite or math.isinf(value)

    def facts(self) -> dict[str, object]:
        if not self._count:
            return {}
        if self._nan or self._infinite:
            mean = math.nan if self._nan else math.inf
        else:
            mean = self._sum / (self._count << _UNIT)  # Python rounds the quotient of two integers correctly
        return {"error": from_float("float64", mean)}
