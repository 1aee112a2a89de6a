"""Saves a booster after each round: trees, predictions, labels, feature importance, SHAP values and metrics."""

from __future__ import annotations

from functools import partial

from ..events.steps import RoundComputed, RoundScored, UpdateDone, UpdateDue
from ..frameworks.boosting import arrays_of
from .tensor_rules import EVAL, TRAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Handler, TrainingEvent
    from .listener import SavedSteps

FULL, AVERAGE = "full_shap", "average_shap"  # costly, so saved only if named


class BoostingTensors:
    """Saves values of each boosting round of this process."""

    def __init__(self, agent: Agent, steps: SavedSteps) -> None:
        self._agent, self._steps = agent, steps

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            UpdateDue: lambda event: self._steps.begin_due_step(event.optimizer),
            RoundComputed: self._round_computed,
            RoundScored: self._round_scored,
            UpdateDone: lambda event: self._steps.updated(event.optimizer),
        }

    def _round_computed(self, event: RoundComputed) -> None:
        if not self._steps.is_armed:
            return
        booster, wants, attempt = event.round, self._steps.rules.wants, self._agent.attempt
        collections: dict[str, Callable[[], Iterable[tuple[str, Any]]]] = {
            "hyperparameters": booster.hyperparameters,
            "trees": lambda: arrays_of(booster.trees()),
            "feature_importance": booster.importance,
            "labels": lambda: [("", booster.labels())],
            "predictions": lambda: [("", booster.predictions())],
        }
        for collection, read in collections.items():
            if wants(collection):
                attempt(self._save_all, collection, read)
        shap = [name for name in (FULL, AVERAGE) if self._steps.rules.asks_for(name)]
        if shap:
            attempt(self._save_contributions, event, shap)

    def _save_contributions(self, event: RoundComputed, names: list[str]) -> None:
        full = event.round.contributions()
        for name in names:
            value = full if name == FULL else full.mean(axis=0)
            self._steps.put_array(name, (name,), TRAIN, partial(_constant, value))

    def _round_scored(self, event: RoundScored) -> None:
        if not self._steps.is_armed:
            return
        for name, (value, mode) in event.scores.items():
            self._steps.put_array(name, ("metrics",), mode, partial(_constant, value))
        for name, data in event.sets.items():
            for collection, read in (("labels", event.round.labels), ("predictions", event.round.predictions)):
                if self._steps.rules.wants(collection):
                    self._agent.attempt(self._save_all, collection, partial(_named, name, read, data), EVAL)

    def _save_all(self, collection: str, read: Callable[[], Iterable[tuple[str, Any]]], mode: str = TRAIN) -> None:
        for name, value in read():
            self._steps.put_array(
                f"{collection}/{name}" if name else collection, (collection,), mode, partial(_constant, value)
            )


def _named(name: str, read: Callable[[Any], Any], data: Any) -> list[tuple[str, Any]]:
    return [(name, read(data))]


def _constant(value: Any) -> Any:
    return value
