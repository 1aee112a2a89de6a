"""Computes confusion matrices of a training from its saved tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reprokit.core.errors import ReprokitError
from reprokit.evidence.report.facts import ConfusionMatrix
from reprokit.evidence.report.section import ReportedRuns
from reprokit.rules.observations import predicted_pairs
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors.trial import EVAL, TRAIN, TensorTrial

MAX_CLASSES = 30  # the largest classes that a table shows
MAX_STEPS = 1000  # the last ones of a training


def section(runs: ReportedRuns) -> dict[str, Any]:
    """Return the confusion matrices of the first run."""
    return {"confusion": confusion_of(runs.first.directory)}


def confusion_of(run: RunDirectory) -> tuple[ConfusionMatrix, ...]:
    """Return a matrix for each set of labels, of the last evaluation or else of the training batches."""
    if not run.has(rundir.TENSORS):
        return ()
    try:
        trial = TensorTrial(run.path)
        steps, mode, title = judged_steps(trial)
        pairs_by_labels = predicted_pairs(trial, steps, mode)
    except ReprokitError:  # damaged, or without NumPy: omitted from the report
        return ()
    return tuple(_matrix(f"{name}, {title}", pairs) for name, pairs in pairs_by_labels.items())


def judged_steps(trial: TensorTrial) -> tuple[list[int], str, str]:
    """Return the steps of the last evaluation, or else of the training, with their mode and a title."""
    evaluated = trial.steps(EVAL)
    if evaluated:  # all batches of an evaluation have one step
        return evaluated[-1:], EVAL, f"the evaluation at step {evaluated[-1]}"
    steps = trial.steps(TRAIN)[-MAX_STEPS:]
    return steps, TRAIN, f"the batches of {len(steps)} training steps"


def _matrix(title: str, pairs: Counter[tuple[int, int]]) -> ConfusionMatrix:
    sizes = Counter[int]()
    for (label, prediction), count in pairs.items():
        sizes[label] += count
        sizes[prediction] += 0
    classes = sorted(label for label, _ in sizes.most_common(MAX_CLASSES))
    rows = tuple(tuple(pairs[label, prediction] for prediction in classes) for label in classes)
    left_out = sum(pairs.values()) - sum(map(sum, rows))
    return ConfusionMatrix(title=title, classes=tuple(classes), counts=rows, left_out=left_out)
