"""XGBoost: its version, the seed among the parameters of a training, its rounds, and predictions."""

from __future__ import annotations

import inspect
import json
import sys
import weakref

from ..core.patching import replace
from ..events.steps import RoundScored
from ..predictions import predictions_of
from .boosting import NODES, BoostingHooks, unpatched
from .estimators import Estimators, ScoringState, noting_outside_calls
from .parameters import ParametersAdapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from ..core.agent import Agent
    from .boosting import Columns

_CLASSIFIES = ("binary:", "multi:")
_COUNTS = ("count:", "reg:", "survival:")


class XgboostAdapter(ParametersAdapter):
    """Patches xgboost."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._tasks: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()

    def instrument(self, name: str, module: Any) -> None:
        if name == "xgboost.core":
            for method in ("predict", "inplace_predict"):
                replace(module.Booster, method, noting_outside_calls(self._agent, self._note))
            if self._hooks is None and "raw_format" in inspect.signature(module.Booster.save_raw).parameters:  # 1.6
                self._hooks = BoostingHooks(self._agent, "xgboost")
                replace(module.Booster, "update", self._hooks.updates(XgboostRound))
                replace(module.Booster, "eval_set", self._hooks.scores(_scored))
        elif name == "xgboost.sklearn":
            self._instrument_estimators(module)
        else:
            super().instrument(name, module)

    def _instrument_estimators(self, module: ModuleType) -> None:
        """Patch the estimators, unless scikit-learn is there: then its adapter does."""
        if "sklearn.base" not in sys.modules:
            estimators = Estimators(self._agent, ScoringState())
            for value in list(vars(module).values()):
                if isinstance(value, type):
                    estimators.instrument(value)

    def _note(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Record predictions, with true labels if the data has them; leaves and contributions are only digested."""
        booster, data = arguments[0], arguments[1] if len(arguments) > 1 else keywords["data"]
        kinds = [
            key for key in ("pred_leaf", "pred_contribs", "pred_interactions", "output_margin") if keywords.get(key)
        ]
        name = ".".join(["xgboost.Booster.predict", *kinds])
        truth = data.get_label() if not kinds and hasattr(data, "get_label") else None
        has_truth = truth is not None and len(truth) == len(result)
        task = "regression" if kinds else self._task(booster)
        predictions_of(self._agent).note(name, result, truth if has_truth else None, hint=task)

    def _task(self, booster: Any) -> str | None:
        """Return the task of a booster by the name of its objective; None if it is unknown."""
        if booster not in self._tasks:
            objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
            task = "classification" if objective.startswith(_CLASSIFIES) else None
            self._tasks[booster] = "regression" if objective.startswith(_COUNTS) else task
        return self._tasks[booster]


_COLUMNS = {  # names in the model's JSON
    "left": "left_children",
    "right": "right_children",
    "feature": "split_indices",
    "split": "split_conditions",
    "gain": "loss_changes",
    "cover": "sum_hessian",
    "value": "base_weights",
}
_IMPORTANCE = ("weight", "gain", "cover", "total_gain", "total_cover")


class XgboostRound:
    """The last round of a booster. Data is the evaluated set; None stands for the training's."""

    def __init__(self, booster: Any, dtrain: Any, *_arguments: Any, **_keywords: Any) -> None:
        self._booster, self.data = booster, dtrain

    def _round_model(self) -> Any:
        """Return a model of this round's trees only; a model without slices, as a linear one, is returned whole."""
        number = self._booster.num_boosted_rounds()
        try:
            return self._booster[number - 1 : number]
        except (IndexError, ValueError):
            return self._booster

    def model(self) -> bytes:
        """Return the serialized trees of this round."""
        return bytes(self._round_model().save_raw("ubj"))

    def trees(self) -> Columns:
        """Return the nodes of the trees of this round, column by column."""
        content = json.loads(bytes(self._round_model().save_raw("json")))["learner"]["gradient_booster"]
        columns: Columns = {name: [] for name in NODES}
        for number, tree in enumerate(content.get("gbtree", content).get("model", {}).get("trees", ())):
            columns["tree"] += [number] * len(tree["left_children"])
            for name, source in _COLUMNS.items():
                columns[name] += tree[source]
        return columns

    def importance(self) -> Iterator[tuple[str, Any]]:
        """Yield the importance of features by its kind."""
        booster, numpy = self._booster, sys.modules["numpy"]
        names = booster.feature_names or [f"f{number}" for number in range(booster.num_features())]
        for kind in _IMPORTANCE:
            try:
                scores = booster.get_score(importance_type=kind)
            except ValueError:  # a linear model has weights only
                continue
            yield kind, numpy.asarray([scores.get(name, 0.0) for name in names], "float64")

    def hyperparameters(self) -> Iterator[tuple[str, float]]:
        """Yield the numeric settings of the booster."""
        yield from _numbers_in(json.loads(self._booster.save_config()))

    def predictions(self, data: Any = None) -> Any:
        return unpatched(type(self._booster).predict)(self._booster, self.data if data is None else data)

    def labels(self, data: Any = None) -> Any:
        return (self.data if data is None else data).get_label()

    def contributions(self) -> Any:
        """Return the SHAP values of the training's data, as the library computes them."""
        return unpatched(type(self._booster).predict)(self._booster, self.data, pred_contribs=True)


def _scored(
    last: XgboostRound | None, result: str, booster: Any, evals: Any, *_arguments: Any, **_keywords: Any
) -> RoundScored:
    """Read what an evaluation returned: [3]\ttrain-rmse:0.5\tvalid-rmse:0.6"""
    training_data = None if last is None else last.data
    sets = {name: data for data, name in evals if data is not training_data and name != "train"}
    scores = {}
    for part in result.split("\t")[1:]:
        name, _, value = part.rpartition(":")
        is_other = any(name.startswith(f"{set_name}-") for set_name in sets)
        scores[name] = float(value), "eval" if is_other else "train"
    return RoundScored(XgboostRound(booster, None), scores, sets)


def _numbers_in(config: Any) -> Iterator[tuple[str, float]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers_in(value)
        elif isinstance(value, str):
            try:
                yield name, float(value)
            except ValueError:  # a text
                continue
