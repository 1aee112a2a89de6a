"""Estimators in the manner of scikit-learn, its own and those of XGBoost and LightGBM: predict and score.

Only calls from outside of these libraries are told: a forest asks its trees, in threads and in the workers of
joblib, and a search its candidates. Classes of the script's own stay as they are, as they may be pickled by value.
"""

from __future__ import annotations

import sys
from _thread import _local
from functools import partial

from ..core.exact_values import described, leaves
from ..core.patching import Function, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agent import Agent

LIBRARIES = frozenset(["catboost", "imblearn", "joblib", "lightgbm", "sklearn", "xgboost"])
METHODS = ("predict", "predict_proba", "score")


def is_inside() -> bool:
    """Return whether the caller of the function that asks this was called by one of the libraries."""
    name: str = sys._getframe(2).f_globals.get("__name__") or ""
    return name.partition(".")[0] in LIBRARIES


def watched(agent: Agent, note: Function) -> Callable[[Function], Function]:
    """Make wrappers of functions that hand result, arguments and keywords of calls from outside to `note`."""

    def make(original: Function) -> Function:
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            if not is_inside():
                agent.attempt(note, result, arguments, keywords)
            return result

        return call

    return make


class Scoring(_local):
    """The score method that a thread is in; the metric that it calls knows the predictions."""

    name = ""
    fold: list[tuple[str, Any, Any]] | None = None  # of a cross-validation: task, what is true, what was predicted


class Estimators:
    """The methods of estimators that predict."""

    def __init__(self, agent: Agent, scoring: Scoring) -> None:
        self._agent = agent
        self._scoring = scoring

    def instrument(self, owner: type) -> None:
        """Watch the methods of a class and its bases, as far as they are a library's."""
        for base in owner.__mro__:
            if base.__module__.partition(".")[0] in LIBRARIES:
                for method in METHODS:
                    self._instrument_method(base, method)

    def _instrument_method(self, owner: type, method: str) -> None:
        make = self._make_score if method == "score" else watched(self._agent, partial(self._note, method))
        found = vars(owner).get(method)
        if hasattr(found, "fn") and hasattr(found, "check"):  # present only where the estimator inside has it
            replace_function(found, make)
        else:
            replace(owner, method, make)

    def _note(self, method: str, result: Any, arguments: tuple[Any, ...], _keywords: dict[str, Any]) -> None:
        estimator = arguments[0]
        parts = list(leaves(f"{type(estimator).__name__}.{method}", result))
        classes = getattr(estimator, "classes_", None) if method == "predict_proba" and len(parts) == 1 else None
        for name, part in parts:
            hint = "classification" if method == "predict_proba" else task_of(estimator, part)
            self._agent.evaluation.note(name, part, hint=hint, classes=classes)

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
    """Replace what a conditional method of scikit-learn calls."""
    holder = type("Holder", (), {})
    holder.fn = descriptor.fn  # type: ignore[attr-defined]
    replace(holder, "fn", make)
    descriptor.fn = vars(holder)["fn"]


def task_of(estimator: Any, result: Any) -> str | None:
    """Return what scikit-learn says of the estimator, where the type of its predictions does not tell."""
    base: Any = sys.modules.get("sklearn.base")
    if base is None or getattr(getattr(result, "dtype", None), "kind", "") != "f":
        return None
    if base.is_classifier(estimator):
        return "classification"
    return "regression" if base.is_regressor(estimator) else None
