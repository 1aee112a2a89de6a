"""scikit-learn's cross-validation and searches: the predictions of their estimators.

joblib executes folds in workers, in an order that does not repeat. The predictions of a fold are returned with its
scores, and recorded where the scores arrive, in the order of the folds.
"""

from __future__ import annotations

import sys

from ..core.exact_values import described
from ..core.patching import Function, replace
from ..predictions import predictions_of
from .estimators import ScoringState, noting_outside_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ..core.agent import Agent

KEY = "_reprokit_predictions"
FOLD = "fold"  # ScoringState.name while a fold is scored
MAX_ROWS = 1_000_000  # predictions of a fold; more are not sent between processes


class CrossValidation:
    """Patches the functions of sklearn.model_selection._validation."""

    def __init__(self, agent: Agent, scoring: ScoringState) -> None:
        self._agent = agent
        self._scoring = scoring

    def instrument(self, module: ModuleType) -> None:
        """Patch the functions, before other modules import them."""
        replace(module, "_fit_and_score", self._make_fit_and_score)
        replace(module, "_score", self._make_score)
        replace(module, "_aggregate_score_dicts", self._make_aggregate)
        replace(module, "cross_val_predict", noting_outside_calls(self._agent, self._note_predicted))
        replace(module, "cross_val_score", noting_outside_calls(self._agent, self._write))

    def _make_fit_and_score(self, original: Function) -> Function:
        def _fit_and_score(estimator: Any, *arguments: Any, **keywords: Any) -> Any:
            scoring = self._scoring
            outer_fold, scoring.fold = scoring.fold, []
            try:
                result = original(estimator, *arguments, **keywords)
                predictions = scoring.fold
            finally:
                scoring.fold = outer_fold
            if isinstance(result, dict) and predictions and outer_fold is None:  # order of nested folds varies
                result[KEY] = (type(estimator).__name__, *predictions[0])
            return result

        return _fit_and_score

    def _make_score(self, original: Function) -> Function:
        def _score(*arguments: Any, **keywords: Any) -> Any:
            scoring = self._scoring
            previous = scoring.name
            if scoring.fold == []:  # the fold's test data come first; its training data may follow
                scoring.name = FOLD
            try:
                return original(*arguments, **keywords)
            finally:
                scoring.name = previous

        return _score

    def _make_aggregate(self, original: Function) -> Function:
        def _aggregate_score_dicts(scores: Any) -> Any:
            folds = [score.pop(KEY, None) for score in scores if isinstance(score, dict)]
            if self._scoring.fold is None:
                for predictions in folds:
                    if predictions is not None:
                        self._agent.attempt(self._note_fold, *predictions)
            return original(scores)

        return _aggregate_score_dicts

    def _note_fold(self, estimator: str, task: str, true: Any, pred: Any) -> None:
        predictions_of(self._agent).note(f"{estimator}.cross-validation", pred, true, hint=task)

    def _note_predicted(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        true = keywords.get("y", arguments[2] if len(arguments) > 2 else None)
        hint, classes = None, None
        if keywords.get("method", "predict") == "predict_proba" and getattr(true, "ndim", 0) == 1:
            hint, classes = "classification", sys.modules["numpy"].unique(true)
        predictions_of(self._agent).note("cross_val_predict", result, true, hint=hint, classes=classes)

    def _write(self, result: Any, _arguments: Any, _keywords: Any) -> None:
        name = "cross_val_score"
        self._agent.journal.write("evaluate", {"name": name, "values": described(name, result)})
