"""Says of which saved values a trail sees all that they are made of, and why others are not proved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from reprokit.questions.proof import ReplayProof
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory

TRAIN = "train"
GRADIENT = "gradient/"
_OF_MODELS = frozenset(["trees", "hyperparameters", "feature_importance"])  # the trail has each round's model
_BOOSTING = ("xgboost", "lightgbm")


class ProofGap(Enum):
    """Why a value is not proved, though the replay is the run by its trail, which does not see the value."""

    DIFFERS = "a second replay gave another value"
    ONCE = "a second replay did not give it"
    CHANGED = "something changed since the recording, which each replay may read"


class SeenValues:
    """The values of one process that its trail sees."""

    def __init__(self, recording: RunDirectory, proof: ReplayProof, process: str) -> None:
        self._results, self._every = frozenset(proof.results), proof.every
        self._names: set[str] = set()
        self._is_boosting = False
        self._series = [
            series for trail in trails.read(recording) for series in trail.series if trail.process == process
        ]
        for series in self._series:
            self._is_boosting |= series.framework in _BOOSTING
            if not any(step.partial for step in series.steps()):
                self._names.update(tensor.name for _, table in series.tables for tensor in table)

    def sees(self, step: int, name: str, mode: str, collections: Collection[str]) -> bool:
        """Return whether the trail has digests of all that this value of a step is made of."""
        if mode != TRAIN or not self._looks_at(step):
            return False
        if name == "loss":
            return "loss" in self._results
        if name.startswith(GRADIENT):
            return "gradients" in self._results and name.removeprefix(GRADIENT) in self._names
        if "optimizer_variables" in collections:  # made of the gradients of all steps before
            parameter = name.partition("/")[2].rpartition("/")[0]
            has_all = self._every == 1 and {"gradients", "parameters"} <= self._results
            return has_all and parameter in self._names
        if "parameters" not in self._results:
            return False
        if self._is_boosting:
            return not _OF_MODELS.isdisjoint(collections)
        return not {"weights", "biases"}.isdisjoint(collections) and name in self._names

    def _looks_at(self, step: int) -> bool:
        """Return whether the trail did not pass over a step; steps of several optimizers may be numbered otherwise."""
        if self._every == 1:
            return True
        if len(self._series) != 1:
            return False
        (series,) = self._series
        if step == series.count:  # behind the last step, whose parameters are there
            return all(last.parameters is not None for last in series.steps(step - 1))
        return series.looked_at_from(step) == step


def gap(content: str, again: str | None, has_changes: bool) -> ProofGap | None:
    """Return why a value that the trail does not see is not proved; None if a second replay gave it again."""
    if again is None:
        return ProofGap.ONCE
    if again != content:
        return ProofGap.DIFFERS
    return ProofGap.CHANGED if has_changes else None


def collections_of(lines: Collection[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the collections of each tensor that an index declares."""
    return {line["tensor"]: line.get("collections", []) for line in lines if "tensor" in line}
