"""Rules on what a training does besides computing: gradients that it keeps, modes of its models, ranks that part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reprokit.core.errors import TensorUnavailable
from reprokit.core.printable import listed
from reprokit.rules.observations import UPDATED_BY, Alarm, tensors, values
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import TRAIN, TensorTrial, TrialTensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CONDUCT = "conduct"
KEPT, MODES, WITHOUT_GRADIENTS = UPDATED_BY, "_modes", "_dropout_without_gradients"
_RANK = re.compile(r"rank(\d+(?:\.rank\d+)*)")  # the name of a rank's own process
NAMED = 8  # ranks in a sentence


def _numbers(trial: TensorTrial, step: int) -> Iterator[tuple[str, list[float]]]:
    """Yield name and numbers of what was noted in a step; a file may hold anything, so two are made of any."""
    for tensor, value in values(trial, step, CONDUCT):
        yield tensor.name, [*map(float, value.reshape(-1)[:2]), 0.0, 0.0][:2]


@dataclass
class GradientsNeverZeroed:
    """Updates use gradients to which each backward pass was added since an earlier update, as nothing zeroed them."""

    trial: TensorTrial
    patience: int = 3
    _kept: Counter[str] = field(default_factory=Counter)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for name, (kept, count) in _numbers(self.trial, step):
            if not name.startswith(KEPT):
                continue
            self._kept[name] = self._kept[name] + 1 if kept else 0
            if self._kept[name] >= self.patience:
                what = f"{kept:.0f} of {count:.0f} gradients still held that of the update before"
                yield Alarm(name, f"at {self.patience} updates in a row, {what}: it was not zeroed")


@dataclass
class EvaluationWithDropout:
    """Between steps of its training, a model computes without gradients while its dropout is on.

    A model is not evaluated that does so in nearly each of these steps, as a generator for its critic, or from some
    step on in each, as one that labels data. Nor is one that did so before it was trained, as in rollouts, or that is
    asked the same again and again.
    """

    trial: TensorTrial
    gap: int = 3  # steps of its training before it, without such a call
    _steps: Counter[str] = field(default_factory=Counter)  # of a model's training since the last such call
    _open: dict[str, Alarm] = field(default_factory=dict)  # by model, until its next step shows that it has none

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        numbers = [*_numbers(self.trial, step)]
        calls = Counter(name for name, _ in numbers if name.endswith(WITHOUT_GRADIENTS))
        meant = {name for name, (_, is_meant) in numbers if name in calls and is_meant}
        layers = {name: first for name, (first, _) in numbers}
        trained = {name.removesuffix(MODES) for name in layers if name.endswith(MODES)}
        for model in sorted(trained & self._open.keys()):
            alarm = self._open.pop(model)
            if alarm.tensor not in calls:
                yield alarm
        for name, count in calls.items():
            model = name.removesuffix(WITHOUT_GRADIENTS)
            steps = self._steps.pop(model, 0)
            if steps >= self.gap and name not in meant:
                how = f"{count} {'call' if count == 1 else 'calls'} without gradients, after {steps} steps"
                self._open[model] = Alarm(
                    name, f"{how} of training without any, had {layers[name]:.0f} of its layers drop values out"
                )
        self._steps.update(model for model in trained if f"{model}{WITHOUT_GRADIENTS}" not in calls)
        if self.trial.loaded_all_steps and step == self.trial.steps()[-1]:
            yield from self._open.values()


@dataclass
class TrainedInEvalMode:
    """A model that was trained in training mode is trained on in eval mode, where some of its layers act otherwise."""

    trial: TensorTrial
    patience: int = 3
    _last: dict[str, int] = field(default_factory=dict)  # the last step in training mode
    _count: Counter[str] = field(default_factory=Counter)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for name, (in_training, in_eval) in _numbers(self.trial, step):
            if not name.endswith(MODES):
                continue
            if in_training:
                self._last[name], self._count[name] = step, 0
            elif in_eval and name in self._last:
                self._count[name] += 1
                if self._count[name] >= self.patience:
                    evidence = f"{self._count[name]} updates in a row came from calls in eval mode"
                    yield Alarm(name, f"{evidence}; it was last called in training mode at step {self._last[name]}")


@dataclass
class RankWeightsDiverge:
    """Ranks that began with the same parameters have others: their gradients are not reduced, or one went wrong.

    Parameters that were never seen equal count if they are as near to each other as some steps of training make them.
    Those of separate trainings are far apart. Of DTensors, ranks with the same part are compared.
    """

    _trial: TensorTrial
    threshold: float = 0.1  # mean distance, as a part of the mean size
    _were_equal: set[tuple[str, ...]] = field(default_factory=set)
    _has_parted: bool = False

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        """Compare the parameters of all ranks, until they have parted once."""
        for collection in () if self._has_parted else ("weights", "biases"):
            for tensor in tensors(self._trial, step, collection):
                for ranks in _copies(tensor, step):
                    if alarm := self._judged(tensor, step, ranks):
                        self._has_parted = True
                        yield alarm

    def _judged(self, tensor: TrialTensor, step: int, ranks: Sequence[str]) -> Alarm | None:
        if len({tensor.shape(step, TRAIN, rank) for rank in ranks}) > 1:
            return None
        names, known = listed([rank.replace("rank", "") for rank in ranks], NAMED), (tensor.name, *ranks)
        try:
            values = [tensor.value(step, TRAIN, rank) for rank in ranks]
        except TensorUnavailable:  # only reductions, or digests, are there
            return self._judged_by_digests(tensor, step, ranks, names)
        if len({value.tobytes() for value in values}) == 1:
            self._were_equal.add(known)
            return None
        distance = _relative_distance(values)
        if known not in self._were_equal and not distance < self.threshold:
            return None
        before = "it was equal before" if known in self._were_equal else "so near that it began equal"
        return Alarm(tensor.name, f"ranks {names} have other values, apart by {distance:.2g} of their size; {before}")

    def _judged_by_digests(self, tensor: TrialTensor, step: int, ranks: Sequence[str], names: str) -> Alarm | None:
        of_ranks, known = tensor.digests(step, TRAIN), (tensor.name, *ranks)
        digests = {of_ranks[rank] for rank in ranks}
        if "" in digests:
            return None
        if len(digests) == 1:
            self._were_equal.add(known)
        elif known in self._were_equal:
            return Alarm(tensor.name, f"ranks {names} have other values; it was equal before")
        return None


def _copies(tensor: TrialTensor, step: int) -> Iterator[list[str]]:
    """Yield the ranks that have the same part of a tensor."""
    ranks: dict[str, list[str]] = {}
    for worker in tensor.workers(step, TRAIN):
        if _RANK.fullmatch(worker):
            ranks.setdefault(tensor.placements.get(worker, ""), []).append(worker)
    yield from (some for some in ranks.values() if len(some) > 1)


def _relative_distance(values: Sequence[Array]) -> float:
    """Return the largest mean distance from the first value, as a part of its mean size; NaN where there is none."""
    numpy = shards.numpy()
    first, *others = (numpy.asarray(value, dtype="float64") for value in values)
    size = float(numpy.mean(numpy.abs(first))) if first.size else 0.0
    distances = [float(numpy.mean(numpy.abs(other - first))) for other in others]
    return max(distances) / size if size else float("nan")
