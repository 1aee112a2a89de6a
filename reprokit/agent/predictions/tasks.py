"""What predictions are: labels, scores of classes, or numbers. docs/format.md has the rules."""

from __future__ import annotations

from .samples import BOOL, FLOAT, INTEGER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .samples import Rows

CLASSIFICATION, REGRESSION = TASKS = ("classification", "regression")

# How labels come out of what was predicted.
LABELS = "labels"  # each value is one
SCORES = "scores"  # the position of the largest along the last dimension
PROBABILITY = "probability"  # 1 above a half, else 0
MULTILABEL = "multilabel"  # a row says of each label whether it applies; numbers do above a half
VALUES = "values"  # none do

HALF = 0.5


class TaskJudgment:
    """The task, the form of the predictions, and who said so."""

    def __init__(self, task: str, form: str, why: str) -> None:
        self.task = task
        self.form = form
        self.why = why


def judge(pred: Rows, truth: Rows | None, asked: str | None, hint: str | None) -> TaskJudgment:
    """The task that the script asked for, or that the framework knows, or else that the values look like."""
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
    """How a classification's predictions are to be read."""
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
    """Whether each row is a 1 among zeros."""
    if len(rows.shape) != 2 or rows.columns < 2 or not is_binary(rows):
        return False
    flat, width = rows.flat(), rows.columns
    return all(flat[start : start + width].count(0) == width - 1 for start in range(0, len(flat), width))


def is_binary(rows: Rows) -> bool:
    """Whether there are no other values than 0 and 1."""
    return rows.kind in (BOOL, INTEGER, FLOAT) and rows.all_in(lambda value: (value == 0) | (value == 1))


def _is_whole(rows: Rows) -> bool:
    return rows.all_in(lambda value: (abs(value) < 1 << 53) & (value % 1 == 0))


def _is_probability(value: Any) -> Any:
    return (value >= 0) & (value <= 1)


def _within_one(pred: Rows, truth: Rows) -> bool:
    return is_binary(truth) and pred.all_in(_is_probability)
