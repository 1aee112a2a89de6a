"""LightGBM: its version, the seed among the parameters of a training, and what boosters predict."""

from __future__ import annotations

from ..core.patching import replace
from .base import ParametersAdapter
from .estimators import watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LightgbmAdapter(ParametersAdapter):
    """Watches lightgbm; its estimators are those of scikit-learn."""

    def instrument(self, name: str, module: Any) -> None:
        if name == "lightgbm.basic":
            replace(module.Booster, "predict", watched(self._agent, self._note))
        else:
            super().instrument(name, module)

    def _note(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        booster = arguments[0]
        kinds = [key for key in ("raw_score", "pred_leaf", "pred_contrib") if keywords.get(key)]
        objective = str(getattr(booster, "params", {}).get("objective", ""))
        is_class = objective.startswith(("binary", "multiclass", "cross_entropy"))
        hint = "classification" if is_class and not kinds else "regression" if kinds else None
        self._agent.evaluation.note(".".join(["lightgbm.Booster.predict", *kinds]), result, hint=hint)
