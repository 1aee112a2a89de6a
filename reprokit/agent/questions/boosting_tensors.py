"""Saves what a booster is after each round: trees, predictions and labels, importance of features, SHAP, metrics."""

from __future__ import annotations

from functools import partial

from ..events import RoundComputed, RoundScored, UpdateDone, UpdateDue
from ..frameworks.boosting import arrays_of
from .tensor_rules import EVAL, TRAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..agent import Agent
    from ..events import Handler, TrainingEvent
    from .tensors import SavedSteps

FULL, AVERAGE = "full_shap", "average_shap"  # dear to compute, and so not among all


class BoostingTensors:
    """Saves the rounds of this process."""

    def __init__(self, agent: Agent, steps: SavedSteps) -> None:
        self._agent, self._steps = agent, steps

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            UpdateDue: lambda event: self._steps.go_on(event.optimizer),
            RoundComputed: self._round_computed,
            RoundScored: self._round_scored,
            UpdateDone: lambda event: self._steps.updated(event.optimizer),
        }

    def _round_computed(self, event: RoundComputed) -> None:
        if not self._steps.is_armed:
            return
        found, wants, attempt = event.round, self._steps.rules.wants, self._agent.attempt
        collections: dict[str, Callable[[], Iterable[tuple[str, Any]]]] = {
            "hyperparameters": found.hyperparameters,
            "trees": lambda: arrays_of(found.trees()),
            "feature_importance": found.importance,
            "labels": lambda: [("", found.labels())],
            "predictions": lambda: [("", found.predictions())],
        }
        for collection, read in collections.items():
            if wants(collection):
                attempt(self._take_all, collection, read)
        shap = [name for name in (FULL, AVERAGE) if self._steps.rules.asks_for(name)]
        if shap:
            attempt(self._take_contributions, event, shap)

    def _take_contributions(self, event: RoundComputed, names: list[str]) -> None:
        full = event.round.contributions()
        for name in names:
            value = full if name == FULL else full.mean(axis=0)
            self._steps.put_array(name, (name,), TRAIN, partial(_same, value))

    def _round_scored(self, event: RoundScored) -> None:
        if not self._steps.is_armed:
            return
        for name, (value, mode) in event.scores.items():
            self._steps.put_array(name, ("metrics",), mode, partial(_same, value))
        for name, data in event.sets.items():
            for collection, read in (("labels", event.round.labels), ("predictions", event.round.predictions)):
                if self._steps.rules.wants(collection):
                    self._agent.attempt(self._take_all, collection, partial(_named, name, read, data), EVAL)

    def _take_all(self, collection: str, read: Callable[[], Iterable[tuple[str, Any]]], mode: str = TRAIN) -> None:
        for name, value in read():
            self._steps.put_array(
                f"{collection}/{name}" if name else collection, (collection,), mode, partial(_same, value)
            )


def _named(name: str, read: Callable[[Any], Any], data: Any) -> list[tuple[str, Any]]:
    return [(name, read(data))]


def _same(value: Any) -> Any:
    return value
