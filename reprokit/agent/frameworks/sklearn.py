"""scikit-learn: its version, the predictions of its estimators, and arguments and results of its metrics."""

from __future__ import annotations

import sys

from ..core.agent import Adapter
from ..core.exact_values import described
from ..core.patching import Function, replace
from ..predictions import predictions_of
from ..seeds.ledger import seeds_of
from .estimators import Estimators, ScoringState, is_inside, noting_outside_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, ModuleType
    from typing import Any

    from ..core.agent import Agent


_CLASSIFICATION = (
    "accuracy_score average_precision_score balanced_accuracy_score brier_score_loss classification_report"
    " cohen_kappa_score confusion_matrix f1_score fbeta_score hamming_loss hinge_loss jaccard_score log_loss"
    " matthews_corrcoef multilabel_confusion_matrix precision_recall_fscore_support precision_score recall_score"
    " roc_auc_score top_k_accuracy_score zero_one_loss"
)
_REGRESSION = (
    "d2_absolute_error_score explained_variance_score max_error mean_absolute_error mean_absolute_percentage_error"
    " mean_gamma_deviance mean_pinball_loss mean_poisson_deviance mean_squared_error mean_squared_log_error"
    " mean_tweedie_deviance median_absolute_error r2_score root_mean_squared_error root_mean_squared_log_error"
)
METRICS = {
    **dict.fromkeys(_CLASSIFICATION.split(), "classification"),
    **dict.fromkeys(_REGRESSION.split(), "regression"),
}
_PREDICTIONS = ("y_pred", "y_score", "y_proba", "y_prob", "pred_decision", "y2")
KEY = "_reprokit_predictions"
FOLD = "fold"  # ScoringState.name while a fold is scored
MAX_ROWS = 1_000_000  # predictions of a fold; more are not sent between processes


class SklearnAdapter(Adapter):
    """Patches sklearn.base, the modules of sklearn.metrics, and cross-validation."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._scoring = ScoringState()

    def instrument(self, name: str, module: ModuleType) -> None:
        if name == "sklearn":
            super().instrument(name, module)
        elif name == "sklearn.base":
            self._instrument_base(module)
        elif name.endswith("_validation"):
            CrossValidation(self._agent, self._scoring).instrument(module)
        else:
            for metric in METRICS:
                replace(module, metric, self._make_metric)

    def _instrument_base(self, module: Any) -> None:
        """Patch each class of an estimator, its mixins included, when it is defined."""
        estimators, agent = Estimators(self._agent, self._scoring), self._agent
        base: Any = module.BaseEstimator
        original_hook = vars(base).get("__init_subclass__")

        def __init_subclass__(cls: Any, **keywords: Any) -> None:  # noqa: N807
            if original_hook is None:
                super(base, cls).__init_subclass__(**keywords)
            else:
                original_hook.__get__(None, cls)(**keywords)
            agent.attempt(estimators.instrument, cls)

        base.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[arg-type]
        replace(module, "clone", self._make_clone)

    def _make_clone(self, original: Function) -> Function:
        """Patch clone, as searches and cross-validation send clones to workers, which are not given seeds again."""

        def clone(estimator: Any, *arguments: Any, **keywords: Any) -> Any:
            copy = original(estimator, *arguments, **keywords)
            if hasattr(getattr(copy, "random_state", None), "__index__") and hasattr(copy, "set_params"):
                self._agent.attempt(self._give_seed, copy, sys._getframe(1))
            return copy

        return clone

    def _give_seed(self, estimator: Any, caller: FrameType) -> None:
        requested = estimator.random_state
        seed = seeds_of(self._agent).seed("sklearn.base.clone random_state", requested, caller)
        if seed is not requested:
            estimator.set_params(random_state=seed)

    def _make_metric(self, original: Function) -> Function:
        def metric(*arguments: Any, **keywords: Any) -> Any:
            name = self._scoring.name
            if not name and is_inside():
                return original(*arguments, **keywords)
            self._scoring.name = ""
            if name == FOLD:
                self._agent.attempt(self._keep_for_fold, original.__name__, arguments, keywords)
                return original(*arguments, **keywords)
            if name:
                self._agent.attempt(self._note, name, original.__name__, arguments, keywords)
                return original(*arguments, **keywords)
            result = original(*arguments, **keywords)
            self._agent.attempt(self._note, "", original.__name__, arguments, keywords)
            self._agent.attempt(self._write, original.__name__, result)
            return result

        return metric

    def _note(self, name: str, metric: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Record predictions, once for all metrics of the same ones, except within an estimator's score."""
        true, pred = _sides(arguments, keywords)
        task = METRICS[metric]
        predictions_of(self._agent).note(name or f"{task} metrics", pred, true, hint=task, once=not name)

    def _keep_for_fold(self, metric: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Keep predictions to be returned with a fold's scores; workers write nothing themselves."""
        true, pred = _sides(arguments, keywords)
        if self._scoring.fold is not None and pred is not None and len(pred) <= MAX_ROWS:
            self._scoring.fold.append((METRICS[metric], true, pred))

    def _write(self, metric: str, result: Any) -> None:
        self._agent.journal.write("evaluate", {"name": metric, "values": described(metric, result)})


def _sides(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any]:
    """Return true and predicted values from the arguments of a metric."""
    true = arguments[0] if arguments else next(_present(keywords, "y_true", "y1"), None)
    pred = arguments[1] if len(arguments) > 1 else next(_present(keywords, *_PREDICTIONS), None)
    return true, pred


def _present(keywords: dict[str, Any], *names: str) -> Iterator[Any]:
    return (keywords[name] for name in names if keywords.get(name) is not None)


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
