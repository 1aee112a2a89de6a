"""Judges the ranks of one training by each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reprokit.core.errors import TensorUnavailable
from reprokit.core.printable import listed
from reprokit.rules.observations import Alarm, tensors
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import TRAIN, TensorTrial, TrialTensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_RANK = re.compile(r"rank(\d+(?:\.rank\d+)*)")  # the name of a rank's own process
NAMED = 8  # ranks in a sentence


@dataclass
class RankWeightsDiverge:
    """Ranks that began with the same parameters have others: their gradients are not reduced, or one went wrong.

    Parameters that were never seen equal count if they are as near to each other as some steps of training make them.
    Those of shards and of separate trainings are far apart.
    """

    _trial: TensorTrial
    threshold: float = 0.1  # mean distance, as a part of the mean size
    _were_equal: set[str] = field(default_factory=set)
    _has_parted: bool = False

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        """Compare the parameters of all ranks, until they have parted once."""
        for collection in () if self._has_parted else ("weights", "biases"):
            for tensor in tensors(self._trial, step, collection):
                if alarm := self._judged(tensor, step):
                    self._has_parted = True
                    yield alarm

    def _judged(self, tensor: TrialTensor, step: int) -> Alarm | None:
        ranks = [worker for worker in tensor.workers(step, TRAIN) if _RANK.fullmatch(worker)]
        if len(ranks) < 2 or len({tensor.shape(step, TRAIN, rank) for rank in ranks}) > 1:
            return None
        try:
            values = [tensor.value(step, TRAIN, rank) for rank in ranks]
        except TensorUnavailable:  # only reductions were saved
            return None
        if len({value.tobytes() for value in values}) == 1:
            self._were_equal.add(tensor.name)
            return None
        distance = _relative_distance(values)
        if tensor.name not in self._were_equal and not distance < self.threshold:
            return None
        names = listed([rank.replace("rank", "") for rank in ranks], NAMED)
        before = "it was equal before" if tensor.name in self._were_equal else "so near that it began equal"
        return Alarm(tensor.name, f"ranks {names} have other values, apart by {distance:.2g} of their size; {before}")


def _relative_distance(values: Sequence[Array]) -> float:
    """Return the largest mean distance from the first value, as a part of its mean size; NaN where there is none."""
    numpy = shards.numpy()
    first, *others = (numpy.asarray(value, dtype="float64") for value in values)
    size = float(numpy.mean(numpy.abs(first))) if first.size else 0.0
    distances = [float(numpy.mean(numpy.abs(other - first))) for other in others]
    return max(distances) / size if size else float("nan")
