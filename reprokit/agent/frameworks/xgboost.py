"""XGBoost: its version, the seed among the parameters of a training, what boosters and estimators predict."""

from __future__ import annotations

import json
import sys
import weakref

from ..core.patching import replace
from .estimators import Estimators, Scoring, is_inside
from .parameters import ParametersAdapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..agent import Agent

    Function = Callable[..., Any]

_CLASSIFIES = ("binary:", "multi:")
_COUNTS = ("count:", "reg:", "survival:")


class XgboostAdapter(ParametersAdapter):
    """Watches xgboost."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._tasks: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()

    def instrument(self, name: str, module: Any) -> None:
        if name == "xgboost.core":
            for method in ("predict", "inplace_predict"):
                replace(module.Booster, method, self._make_predict)
        elif name == "xgboost.sklearn":
            self._instrument_estimators(module)
        else:
            super().instrument(name, module)

    def _instrument_estimators(self, module: ModuleType) -> None:
        """Without scikit-learn they are classes like any other."""
        if "sklearn.base" not in sys.modules:
            estimators = Estimators(self._agent, Scoring())
            for value in list(vars(module).values()):
                if isinstance(value, type):
                    estimators.instrument(value)

    def _make_predict(self, original: Function) -> Function:
        def predict(booster: Any, data: Any, *arguments: Any, **keywords: Any) -> Any:
            result = original(booster, data, *arguments, **keywords)
            if not is_inside():
                self._agent.attempt(self._note, booster, data, result, keywords)
            return result

        return predict

    def _note(self, booster: Any, data: Any, result: Any, keywords: dict[str, Any]) -> None:
        """The predictions, and the true labels where the data has them; of leaves and contributions the bits alone."""
        kinds = [
            key for key in ("pred_leaf", "pred_contribs", "pred_interactions", "output_margin") if keywords.get(key)
        ]
        name = ".".join(["xgboost.Booster.predict", *kinds])
        truth = data.get_label() if not kinds and hasattr(data, "get_label") else None
        has_truth = truth is not None and len(truth) == len(result)
        task = "regression" if kinds else self._task(booster)
        self._agent.evaluation.note(name, result, truth if has_truth else None, hint=task)

    def _task(self, booster: Any) -> str | None:
        """What a booster was trained for, by the name of its objective."""
        if booster not in self._tasks:
            objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
            task = "classification" if objective.startswith(_CLASSIFIES) else None
            self._tasks[booster] = "regression" if objective.startswith(_COUNTS) else task
        return self._tasks[booster]
