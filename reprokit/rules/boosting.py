"""Rules on boosted trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reprokit.rules.observations import Alarm, values
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import TensorTrial

# How often a feature parts a node, as XGBoost and LightGBM call it.
SPLITS = ("feature_importance/weight", "feature_importance/split")


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
