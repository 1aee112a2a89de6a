"""CatBoost: its version, the seeds of its trainings, the metrics of their iterations, and predictions of its models."""

from __future__ import annotations

import sys

from ..core.agent import Adapter
from ..core.exact_values import describe
from ..core.patching import Function, replace
from ..seeds.ledger import seeds_of
from .estimators import Estimators, ScoringState
from .parameters import SEED_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CatboostAdapter(Adapter):
    """Patches catboost."""

    def instrument(self, name: str, module: Any) -> None:
        if name == "catboost":
            super().instrument(name, module)
            return
        estimators = Estimators(self._agent, ScoringState())
        for value in list(vars(module).values()):
            if isinstance(value, type) and issubclass(value, module.CatBoost):
                estimators.instrument(value)
                replace(value, "fit", self._make_fit)

    def _make_fit(self, original: Function) -> Function:
        def fit(model: Any, *arguments: Any, **keywords: Any) -> Any:
            self._agent.attempt(self._give_seeds, model, sys._getframe(1))
            result = original(model, *arguments, **keywords)
            self._agent.attempt(self._write_metrics, model)
            return result

        return fit

    def _give_seeds(self, model: Any, caller: Any) -> None:
        parameters = model.get_params()
        for name in SEED_NAMES:
            requested = parameters.get(name)
            seed = seeds_of(self._agent).seed(f"catboost.fit {name}", requested, caller)
            if seed is not requested:
                model.set_params(**{name: seed})

    def _write_metrics(self, model: Any) -> None:
        values = {}
        for data, metrics in model.get_evals_result().items():
            for metric, series in metrics.items():
                values[f"{data}/{metric}"] = describe(float(series[-1]))
                values[f"{data}/{metric} of each iteration"] = describe(sys.modules["numpy"].asarray(series))
        self._agent.journal.write("evaluate", {"name": f"{type(model).__name__}.fit", "values": values})
