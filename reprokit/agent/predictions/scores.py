"""Decides whether predictions are labels, scores or numbers, and scores them. docs/format.md has the rules.

Accuracy and mean absolute error are exact: the same on any machine, and for any division into batches.
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

# How predictions are converted to labels.
LABELS = "labels"  # each value is one
SCORES = "scores"  # the position of the largest value along the last dimension
PROBABILITY = "probability"  # 1 if above a half, else 0
MULTILABEL = "multilabel"  # a row has a flag for each label; numbers above a half are true
VALUES = "values"  # they are not

HALF = 0.5
MAX_CLASSES = 10_000
_UNIT = 1126  # every finite float64 is a multiple of 2**-1126, even with its mantissa written as 53 bits
_CHUNK = 1 << 20


class TaskJudgment:
    """The task, the form of the predictions, and who decided (given, framework or inferred)."""

    def __init__(self, task: str, form: str, why: str) -> None:
        self.task = task
        self.form = form
        self.why = why


def judge(pred: Rows, truth: Rows | None, requested: str | None, hint: str | None) -> TaskJudgment:
    """Return the task: the script's if given, else the framework's, else inferred from the values."""
    for task, why in ((requested, "given"), (hint, "framework")):
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
    """Return the form of a classification's predictions."""
    if pred.kind == FLOAT:
        if pred.columns > 1:
            binary = truth is not None and truth.shape == pred.shape and not is_one_hot(truth)
            return MULTILABEL if binary else SCORES
        return _form_of_column(pred, truth)
    if len(pred.shape) == 2 and pred.columns > 1 and pred.kind in (BOOL, INTEGER) and is_binary(pred):
        return MULTILABEL
    return LABELS


def _form_of_column(pred: Rows, truth: Rows | None) -> str:
    """Return the form of a float column: probabilities, labels, or margins without a known threshold (VALUES)."""
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
    """Return whether all values are 0 or 1."""
    return rows.kind in (BOOL, INTEGER, FLOAT) and rows.all_in(lambda value: (value == 0) | (value == 1))


def _is_whole(rows: Rows) -> bool:
    return rows.all_in(lambda value: (abs(value) < 1 << 53) & (value % 1 == 0))


def _is_probability(value: Any) -> Any:
    return (value >= 0) & (value <= 1)


def _within_one(pred: Rows, truth: Rows) -> bool:
    return is_binary(truth) and pred.all_in(_is_probability)


class Accuracy:
    """Counts correct labels, in total and for each true label."""

    def __init__(self, form: str, classes: list[Any] | None) -> None:
        self._form = form
        self._classes = classes  # labels of the columns of scores
        self._rows = [0, 0]  # correct and all multilabel rows, as their classes are counted separately
        self.right: Counter[Any] = Counter()
        self.all: Counter[Any] = Counter()

    def add(self, pred: Rows, truth: Rows) -> None:
        """Count predictions; raises ValueError if predictions and true values do not match."""
        if self._form == MULTILABEL:
            self._add_multilabel(_above_half(pred), _above_half(truth), pred.columns)
            return
        predicted, true = self._predicted(pred), self._true(pred, truth)
        if len(predicted) != len(true):
            raise ValueError(f"{len(predicted)} predictions, {len(true)} true values")
        self.all.update(true)
        self.right.update([label for label, prediction in zip(true, predicted) if label == prediction])

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
            self.right[column] += sum(1 for true_flag, predicted_flag in pairs if true_flag == predicted_flag)

    def facts(self) -> dict[str, object]:
        """Return correct and all counts, in total and for each true label in sorted order."""
        total = sum(self.all.values())
        if not total:
            return {}
        rows = self._rows if self._form == MULTILABEL else [sum(self.right.values()), total]
        labels = sorted(self.all, key=lambda label: (isinstance(label, str), label))[:MAX_CLASSES]
        return {"accuracy": rows, "classes": [[str(label), self.right[label], self.all[label]] for label in labels]}


def _labels(rows: Rows) -> list[Any]:
    """Return the values as labels; NaN becomes "nan", to be counted as one label."""
    return rows.flat() if rows.kind != FLOAT else [value if value == value else "nan" for value in rows.flat()]


def _above_half(rows: Rows) -> list[bool]:
    return [value > HALF for value in rows.flat()]


class AbsoluteError:
    """Computes the mean absolute error: each difference rounded to float64, summed exactly, the mean rounded once."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0  # in units of 2**-_UNIT
        self._infinite = self._nan = False

    def add(self, pred: Rows, truth: Rows) -> None:
        """Add differences; raises ValueError if predictions and true values do not match."""
        numbers = (BOOL, INTEGER, FLOAT)
        if pred.elements != truth.elements or pred.kind not in numbers or truth.kind not in numbers:
            raise ValueError(f"{pred.elements} predictions {pred.dtype}, {truth.elements} true values {truth.dtype}")
        self._count += pred.elements
        if pred.array is not None and truth.array is not None:
            pred_values, truth_values = pred.array.reshape(-1), truth.array.reshape(-1)
            for start in range(0, pred.elements, _CHUNK):
                self._add_arrays(pred_values[start : start + _CHUNK], truth_values[start : start + _CHUNK])
        else:
            self._add_floats([abs(float(a) - float(b)) for a, b in zip(truth.flat(), pred.flat())])

    def _add_arrays(self, pred: Any, truth: Any) -> None:
        """Add differences of NumPy arrays, like _add_floats(): sum mantissas by exponent."""
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
        distinct, which = numpy.unique(exponents, return_inverse=True)
        high = numpy.bincount(which, integers >> 26, len(distinct))  # exact, as sums are below 2**53
        low = numpy.bincount(which, integers & ((1 << 26) - 1), len(distinct))
        for exponent, high_sum, low_sum in zip(distinct.tolist(), high.tolist(), low.tolist()):
            self._sum += ((int(high_sum) << 26) + int(low_sum)) << (exponent - 53 + _UNIT)

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
