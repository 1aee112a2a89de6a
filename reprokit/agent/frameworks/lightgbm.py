"""LightGBM: its version, the seed among the parameters of a training, and what boosters predict."""

from __future__ import annotations

from ..core.patching import replace
from .estimators import is_inside
from .parameters import ParametersAdapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Function = Callable[..., Any]


class LightgbmAdapter(ParametersAdapter):
    """Watches lightgbm; its estimators are those of scikit-learn."""

    def instrument(self, name: str, module: Any) -> None:
        if name == "lightgbm.basic":
            replace(module.Booster, "predict", self._make_predict)
        else:
            super().instrument(name, module)

    def _make_predict(self, original: Function) -> Function:
        def predict(booster: Any, *arguments: Any, **keywords: Any) -> Any:
            result = original(booster, *arguments, **keywords)
            if not is_inside():
                self._agent.attempt(self._note, booster, result, keywords)
            return result

        return predict

    def _note(self, booster: Any, result: Any, keywords: dict[str, Any]) -> None:
        kinds = [key for key in ("raw_score", "pred_leaf", "pred_contrib") if keywords.get(key)]
        objective = str(getattr(booster, "params", {}).get("objective", ""))
        is_class = objective.startswith(("binary", "multiclass", "cross_entropy"))
        hint = "classification" if is_class and not kinds else "regression" if kinds else None
        self._agent.evaluation.note(".".join(["lightgbm.Booster.predict", *kinds]), result, hint=hint)
