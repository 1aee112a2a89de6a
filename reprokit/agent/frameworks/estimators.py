"""Estimators with scikit-learn's interface, also of XGBoost and LightGBM: predict and score.

Only calls from outside these libraries are recorded: a forest calls its trees, in threads and joblib's workers, and a
search its candidates. The script's own classes are not patched, as they may be pickled by value.
"""

from __future__ import annotations

import sys
from _thread import _local
from functools import partial

from ..core.exact_values import described, leaves
from ..core.patching import Function, replace
from ..predictions import predictions_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.agent import Agent

LIBRARIES = frozenset(["catboost", "imblearn", "joblib", "lightgbm", "sklearn", "xgboost"])
METHODS = ("predict", "predict_proba", "score")


def is_inside() -> bool:
    """Return whether the function that calls this was called by one of the libraries."""
    name: str = sys._getframe(2).f_globals.get("__name__") or ""
    return name.partition(".")[0] in LIBRARIES


def noting_outside_calls(agent: Agent, note: Function) -> Callable[[Function], Function]:
    """Return a wrapper of functions that passes result, arguments and keywords of outside calls to `note`."""

    def make(original: Function) -> Function:
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            if not is_inside():
                agent.attempt(note, result, arguments, keywords)
            return result

        return call

    return make


class ScoringState(_local):
    """The score method that a thread executes; the metric that it calls records the predictions."""

    name = ""
    fold: list[tuple[str, Any, Any]] | None = None  # predictions in a fold: task, true and predicted values


class Estimators:
    """Patches the methods of estimators that predict."""

    def __init__(self, agent: Agent, scoring: ScoringState) -> None:
        self._agent = agent
        self._scoring = scoring

    def instrument(self, owner: type) -> None:
        """Patch the methods of a class and its bases that belong to a library."""
        for base in owner.__mro__:
            if base.__module__.partition(".")[0] in LIBRARIES:
                for method in METHODS:
                    self._instrument_method(base, method)

    def _instrument_method(self, owner: type, method: str) -> None:
        make = self._make_score if method == "score" else noting_outside_calls(self._agent, partial(self._note, method))
        descriptor = vars(owner).get(method)
        if hasattr(descriptor, "fn") and hasattr(descriptor, "check"):  # available only if the inner estimator has it
            replace_function(descriptor, make)
        else:
            replace(owner, method, make)

    def _note(self, method: str, result: Any, arguments: tuple[Any, ...], _keywords: dict[str, Any]) -> None:
        estimator = arguments[0]
        parts = list(leaves(f"{type(estimator).__name__}.{method}", result))
        classes = getattr(estimator, "classes_", None) if method == "predict_proba" and len(parts) == 1 else None
        for name, part in parts:
            hint = "classification" if method == "predict_proba" else task_of(estimator, part)
            predictions_of(self._agent).note(name, part, hint=hint, classes=classes)

    def _make_score(self, original: Function) -> Function:
        def score(estimator: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_inside():
                return original(estimator, *arguments, **keywords)
            scoring, name = self._scoring, f"{type(estimator).__name__}.score"
            scoring.name = name
            try:
                result = original(estimator, *arguments, **keywords)
            finally:
                scoring.name = ""
            self._agent.attempt(self._write_score, name, result)
            return result

        return score

    def _write_score(self, name: str, result: Any) -> None:
        self._agent.journal.write("evaluate", {"name": name, "values": described("score", result)})


def replace_function(descriptor: Any, make: Callable[[Function], Function]) -> None:
    """Replace the function of a conditional method of scikit-learn."""
    holder = type("Holder", (), {})
    holder.fn = descriptor.fn  # type: ignore[attr-defined]
    replace(holder, "fn", make)
    descriptor.fn = vars(holder)["fn"]


def task_of(estimator: Any, result: Any) -> str | None:
    """Return the task by scikit-learn's kind of estimator, if the predictions are floats; else None."""
    base: Any = sys.modules.get("sklearn.base")
    if base is None or getattr(getattr(result, "dtype", None), "kind", "") != "f":
        return None
    if base.is_classifier(estimator):
        return "classification"
    return "regression" if base.is_regressor(estimator) else None
