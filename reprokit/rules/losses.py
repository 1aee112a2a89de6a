"""Rules on the loss, in training and evaluations."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from reprokit.rules.boosting import LostRounds
from reprokit.rules.observations import (
    CLASSIFYING,
    Alarm,
    EvaluationStep,
    are_several_trainings,
    labeled,
    loss,
    loss_name,
    loss_scale,
    optimizers,
    values,
)
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import EVAL, TensorTrial

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_OF_PYTORCH = re.compile(r"(?:CrossEntropyLoss|NllLoss|NLLLoss)\w*_input_1$")
TYPICAL_NOISE = 0.1  # of losses of batches: their standard deviation, as a share of their mean


@dataclass
class LossNotDecreasing:
    """The loss is where it began, or higher, and does not fall from one stretch of steps to the next.

    Losses of models that train against each other, each with an optimizer, need not fall. Where another optimizer
    takes over, another training begins. Scaled losses are taken as they were before. Where a loss varies much between
    batches, more of them must show it.
    """

    trial: TensorTrial
    num_steps: int = 10
    diff_percent: float = 0.1
    increase_threshold_percent: float = 5.0
    patience: int = 2  # stretches
    _losses: list[float] = field(default_factory=list)
    _best: float = math.inf
    _failed: int = 0
    _owners: frozenset[str] = frozenset()  # the optimizers of the last step

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        step_loss = loss(self.trial, (step,))
        if step_loss is None or are_several_trainings(self.trial, step):
            return
        owners = optimizers(self.trial, step)
        if self._owners and owners and self._owners.isdisjoint(owners):
            self._losses, self._best, self._failed = [], math.inf, 0
        self._owners = owners or self._owners
        self._losses.append(step_loss / (loss_scale(self.trial, step) or 1.0))
        if len(self._losses) % self.num_steps:
            return
        recent = self._losses[-self.num_steps :]
        now, start = fmean(recent), self._losses[0]
        if not math.isfinite(now):
            return  # ExplodingTensor reports this
        has_fallen = now < self._best - abs(self._best) * self.diff_percent / 100
        # A loss that fell and stays low is no failure, and noise between batches is no fall.
        noise = min(2 * pstdev(recent), abs(start) / 4)  # larger jumps are no noise between batches
        noise = max(abs(start) * self.increase_threshold_percent / 100, noise)
        has_learned = now < start - noise
        self._failed = self._failed + 1 if not has_fallen and not has_learned and math.isfinite(self._best) else 0
        self._best = min(self._best, now)
        has_risen = now > max(start, fmean(self._losses[: self.num_steps])) + noise
        patience = self.patience * max(1.0, pstdev(recent) / abs(now) / TYPICAL_NOISE) if now else self.patience
        if self._failed >= (1 if has_risen else patience):
            movement = "rose" if has_risen else f"did not fall in the last {self._failed * self.num_steps}"
            steps = f"{'in' if has_risen else 'of'} {len(self._losses)} saved steps"
            evidence = f"it {movement} {steps}: {start:.4g} at first, mean of the last {self.num_steps} {now:.4g}"
            yield Alarm(loss_name(self.trial), evidence)


@dataclass
class Overfit:
    """The loss of evaluations stays above that of the training, and falls no more; boosters' rises for many rounds."""

    trial: TensorTrial
    patience: int = 1
    ratio_threshold: float = 0.1
    floor: float = 0.05  # share of the first training loss; smaller distances are ignored
    rounds: int = 20  # rounds of boosters since the best one
    rise: float = 0.25  # share by which their loss exceeds its best, and
    lost: float = 0.5  # share of the gain until then that was lost again
    _first: float | None = None
    _best: float = math.inf
    _failed: int = 0

    def __post_init__(self) -> None:
        self._boosted = LostRounds(self.rounds, self.rise, self.lost)

    def invoke_at_evaluation(self, evaluation: EvaluationStep) -> Iterator[Alarm]:
        yield from self._boosted.judge(self.trial, evaluation)
        train, validation = both_losses(self.trial, evaluation)
        if train is None or validation is None:
            return
        if self._first is None:
            self._first = loss(self.trial, evaluation.train_steps[:1])
        distance = validation - train
        is_apart = distance > self.ratio_threshold * abs(train) and distance > self.floor * abs(self._first or train)
        is_worse = validation > self._best * (1 - 0.01)
        self._best = min(self._best, validation)
        self._failed = self._failed + 1 if is_apart else 0
        if self._failed > self.patience and is_worse:
            evidence = f"the loss of the evaluation is {validation:.4g}, that of the training before it {train:.4g}"
            yield Alarm(loss_name(self.trial), f"{evidence}, and it falls no more")


@dataclass
class Overtraining:
    """Neither loss has become better for some evaluations."""

    trial: TensorTrial
    patience_train: int = 5
    patience_validation: int = 10
    delta: float = 0.01
    _best: list[float] = field(default_factory=lambda: [math.inf, math.inf])
    _failed: list[int] = field(default_factory=lambda: [0, 0])

    def invoke_at_evaluation(self, evaluation: EvaluationStep) -> Iterator[Alarm]:
        for side, side_loss in enumerate(both_losses(self.trial, evaluation)):
            if side_loss is None:
                return
            self._failed[side] = 0 if side_loss < self._best[side] - self.delta else self._failed[side] + 1
            self._best[side] = min(self._best[side], side_loss)
        if self._failed[0] >= self.patience_train and self._failed[1] >= self.patience_validation:
            evidence = f"no better by {self.delta:g} for {self._failed[0]} and {self._failed[1]} evaluations"
            yield Alarm(loss_name(self.trial), f"losses of training and evaluation are {evidence}")


@dataclass
class Underfitting:
    """Both losses stay flat, no lower than that of somebody who guesses by the frequencies of the classes."""

    trial: TensorTrial
    flat: float = 0.01
    margin: float = 0.02
    _counts: Counter[int] = field(default_factory=Counter)
    _before: tuple[float, float] | None = None

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for name, labels, _ in labeled(self.trial, step):
            if CLASSIFYING.search(name):
                self._counts.update(labels.tolist())
        return iter(())

    def invoke_at_evaluation(self, evaluation: EvaluationStep) -> Iterator[Alarm]:
        now, before = both_losses(self.trial, evaluation), self._before
        if now[0] is None or now[1] is None or len(self._counts) < 2:
            return
        self._before = now[0], now[1]
        total = self._counts.total()
        guessed = -sum(count / total * math.log(count / total) for count in self._counts.values())
        pairs = zip(self._before, before or (math.inf, math.inf), strict=True)
        is_flat = all(abs(new - old) < self.flat * abs(old) for new, old in pairs if math.isfinite(old)) and before
        if is_flat and min(self._before) > guessed * (1 - self.margin):
            losses = f"{self._before[0]:.4g} and {self._before[1]:.4g}"
            evidence = f"losses of training and evaluation stay at {losses}; guessing by frequency has {guessed:.4g}"
            yield Alarm(loss_name(self.trial), evidence)


@dataclass
class StalledTraining:
    """No step has come for a long time. Only a run that is followed can show it."""

    trial: TensorTrial
    threshold: float = 1800.0  # seconds

    def invoke_when_idle(self, seconds: float) -> Iterator[Alarm]:
        if seconds > self.threshold:
            yield Alarm("", f"no step has been saved for {seconds:.0f} seconds")


def both_losses(trial: TensorTrial, evaluation: EvaluationStep) -> tuple[float | None, float | None]:
    """Return the mean losses of the training before an evaluation, and of the evaluation."""
    return loss(trial, evaluation.train_steps), loss(trial, evaluation.eval_steps, EVAL)


@dataclass
class DoubleSoftmax:
    """PyTorch's cross entropy is given probabilities, and takes the softmax of them again; or the NLL of them."""

    trial: TensorTrial
    patience: int = 5  # steps in a row
    _steps: Counter[str] = field(default_factory=Counter)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for name, _, scores in labeled(self.trial, step):
            if scores is None or not _OF_PYTORCH.search(name):
                continue
            source = name[:-1] + "0" if _are_probabilities(scores) else self._output_behind(step, scores)
            self._steps[name] = self._steps[name] + 1 if source else 0
            if self._steps[name] >= self.patience:
                what = "it holds probabilities, where the loss expects logits or their logarithms"
                yield Alarm(source, f"at {self.patience} steps in a row, {what}")

    def _output_behind(self, step: int, scores: Array) -> str:
        """Return the output with probabilities whose logarithms of softmax are these scores; an empty text if none."""
        numpy = shards.numpy()
        for tensor, value in values(self.trial, step, "outputs"):
            if value.shape == scores.shape and _are_probabilities(value):
                logarithms = value - numpy.log(numpy.exp(value).sum(axis=1, keepdims=True))
                if numpy.allclose(logarithms, scores, atol=1e-3):
                    return tensor.name
        return ""


def _are_probabilities(scores: Array) -> bool:
    if scores.ndim != 2 or scores.shape[1] < 2 or scores.dtype.kind != "f":
        return False
    return bool((scores >= 0).all() and (abs(scores.sum(axis=1) - 1) < 1e-3).all())
