"""XGBoost: its version, the seed among the parameters of a training, what boosters and estimators predict."""

from __future__ import annotations

import json
import sys
import weakref

from ..core.patching import replace
from .base import ParametersAdapter
from .estimators import Estimators, Scoring, watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ..agent import Agent

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
                replace(module.Booster, method, watched(self._agent, self._note))
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

    def _note(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """The predictions, and the true labels where the data has them; of leaves and contributions the bits alone."""
        booster, data = arguments[0], arguments[1] if len(arguments) > 1 else keywords["data"]
        kinds = [
            key for key in ("pred_leaf", "pred_contribs", "pred_interactions", "output_margin") if keywords.get(key)
        ]
        name = ".".join(["xgboost.Booster.predict", *kinds])
        truth = data.get_label() if not kinds and hasattr(data, "get_label") else None
        has_truth = truth is not None and len(truth) == len(result)
        task = "regression" if kinds else self._task(booster)
        self._agent.evaluation.note(name, result, truth if has_truth else None, hint=task)

    def _task(self, booster: Any) -> str | None:
        """Return what a booster was trained for, by the name of its objective."""
        if booster not in self._tasks:
            objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
            task = "classification" if objective.startswith(_CLASSIFIES) else None
            self._tasks[booster] = "regression" if objective.startswith(_COUNTS) else task
        return self._tasks[booster]
