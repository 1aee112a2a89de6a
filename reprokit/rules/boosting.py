"""Rules on boosted trees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from reprokit.rules.observations import Alarm, EvaluationStep, number, tensors, values
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import EVAL, TRAIN, TensorTrial

# Names of XGBoost and LightGBM for the number of nodes that a feature splits.
SPLITS = ("feature_importance/weight", "feature_importance/split")
# Metrics that are smooth losses; an error rate jumps with a single sample.
LOSS = re.compile(r".+-(m?logloss|binary_logloss|multi_logloss|cross_entropy|rmsle|rmse|mae|mape|l1|l2|huber|fair)")
FELL = 0.8  # share of the training loss at the best round


@dataclass
class LostRounds:
    """Finds boosters whose validation loss rose much above its best while the training loss fell.

    The distance of both losses is no sign: healthy boosters often have a training loss near zero.
    """

    rounds: int
    rise: float
    lost: float
    _losses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # validation and training losses

    def judge(self, trial: TensorTrial, evaluation: EvaluationStep) -> Iterator[Alarm]:
        train = {metric: (name, value) for name, metric, value in _losses(trial, evaluation.train_steps, TRAIN)}
        for name, metric, value in _losses(trial, evaluation.eval_steps, EVAL):
            if metric not in train:
                continue
            trained, now = train[metric]
            past = self._losses.setdefault(name, [])
            if past and now > 1.2 * past[-1][1]:  # a jump: another training has begun
                past.clear()
            past.append((value, now))
            best = min(past)
            recent = fmean(training_loss for training_loss, _ in past[-self.rounds // 2 :])
            has_risen = recent - best[0] > max(self.rise * best[0], self.lost * (past[0][0] - best[0]))
            if has_risen and len(past) - past.index(best) > self.rounds and now < FELL * best[1]:
                since = f"in {len(past) - 1 - past.index(best)} rounds it rose from {best[0]:.4g} to {value:.4g}"
                yield Alarm(name, f"{since}, while {trained} fell from {best[1]:.4g} to {now:.4g}")


def _losses(trial: TensorTrial, steps: tuple[int, ...], mode: str) -> Iterator[tuple[str, str, float]]:
    """Yield name, metric and value of boosters' losses at the last of these steps."""
    for tensor in tensors(trial, steps[-1], "metrics", mode) if steps else ():
        match, value = LOSS.fullmatch(tensor.name), number(tensor, steps[-1], "mean", mode=mode)
        if match and value is not None:
            yield tensor.name, match[1], value


@dataclass
class TreeDepth:
    """A tree is deeper than wanted."""

    trial: TensorTrial
    depth: int = 4

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for tensor, value in values(self.trial, step, "trees"):
            if tensor.name == "trees/depth" and value.size and value.max() > self.depth:
                yield Alarm(
                    tensor.name, f"a tree of round {step} has a depth of {int(value.max())}, above {self.depth}"
                )


@dataclass
class FeatureImportanceOverweight:
    """A few features have most of the importance."""

    trial: TensorTrial
    threshold: float = 0.8
    nb_features: int = 3

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for tensor, value in values(self.trial, step, "feature_importance"):
            total = float(value.sum())
            if tensor.name in SPLITS and value.ndim == 1 and value.size > self.nb_features and total > 0:
                top = shards.numpy().argsort(-value)[: self.nb_features]
                share = float(value[top].sum()) / total
                if share > self.threshold:
                    names = ", ".join(map(str, top.tolist()))
                    yield Alarm(tensor.name, f"features {names} have {100 * share:.0f} % of the importance")
