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
from .boosting_trail import ModelDigests, digests_of
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
                for method in ("set_param", "load_model", "__del__"):
                    replace(module.Booster, method, self._hooks.changes)
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
SMALL = 64  # rounds of a model that is serialized whole, as that takes less time than to make a slice
_IMPORTANCE = ("weight", "gain", "cover", "total_gain", "total_cover")


class XgboostRound:
    """The last round of a booster. Data is the evaluated set; None stands for the training's."""

    def __init__(self, booster: Any, dtrain: Any, *_arguments: Any, **_keywords: Any) -> None:
        self.booster, self.data = booster, dtrain

    def number(self) -> int:
        """Return how many rounds the model has."""
        return self.booster.num_boosted_rounds()  # type: ignore[no-any-return]

    def cells(self) -> int:
        """Return rows times columns of the training's data."""
        return self.data.num_row() * self.data.num_col()  # type: ignore[no-any-return]

    reads_leaves = False

    @staticmethod
    def digests(booster: Any, first: int = 0, last: int | None = None) -> ModelDigests:
        """Digest the model, and its rounds from the first of these on; or these rounds only."""
        model = booster if last is None or first <= SMALL else _sliced(booster, first, last)
        return digests_of_model(
            model.save_raw("ubj"), model.num_boosted_rounds(), 0 if model is booster else first, first
        )

    def trees(self) -> Columns:
        """Return the nodes of the trees of this round, column by column."""
        model = _sliced(self.booster, self.number() - 1, self.number())
        content = json.loads(bytes(model.save_raw("json")))["learner"]["gradient_booster"]
        columns: Columns = {name: [] for name in NODES}
        for number, tree in enumerate(content.get("gbtree", content).get("model", {}).get("trees", ())):
            columns["tree"] += [number] * len(tree["left_children"])
            for name, source in _COLUMNS.items():
                columns[name] += tree[source]
        return columns

    def importance(self) -> Iterator[tuple[str, Any]]:
        """Yield the importance of features by its kind."""
        booster, numpy = self.booster, sys.modules["numpy"]
        names = booster.feature_names or [f"f{number}" for number in range(booster.num_features())]
        for kind in _IMPORTANCE:
            try:
                scores = booster.get_score(importance_type=kind)
            except ValueError:  # a linear model has weights only
                continue
            yield kind, numpy.asarray([scores.get(name, 0.0) for name in names], "float64")

    def hyperparameters(self) -> Iterator[tuple[str, float]]:
        """Yield the numeric settings of the booster."""
        yield from _numbers_in(json.loads(self.booster.save_config()))

    def predictions(self, data: Any = None) -> Any:
        return unpatched(type(self.booster).predict)(self.booster, self.data if data is None else data)

    def labels(self, data: Any = None) -> Any:
        return (self.data if data is None else data).get_label()

    def contributions(self) -> Any:
        """Return the SHAP values of the training's data, as the library computes them."""
        return unpatched(type(self.booster).predict)(self.booster, self.data, pred_contribs=True)


def _sliced(booster: Any, first: int, last: int) -> Any:
    """Return a model of these rounds only; one without slices is returned itself."""
    try:
        return booster[first:last]
    except (IndexError, ValueError):
        return booster


def _key(name: bytes) -> bytes:
    """Return a key of an object as UBJSON has it."""
    return b"L" + len(name).to_bytes(8, "big") + name


_TREE, _NUMBER, _AFTER_NUMBER = _key(b"base_weights"), _key(b"id"), _key(b"left_children")  # the first key comes first
_FEATURES, _BOOSTER, _NAME = _key(b"feature_names"), _key(b"gradient_booster"), _key(b"name")
_SETTINGS, _WEIGHTS = _key(b"learner_model_param"), _key(b"weight_drop")


def digests_of_model(model: bytearray, rounds: int, begin: int, first: int) -> ModelDigests:
    """Digest a model in UBJSON, whose keys are sorted: without attributes, which callbacks set, and trees' numbers.

    It has so many rounds of a booster from `begin` on; those before the first are not digested. Dart rescales earlier
    trees by weights beside them, so that its rounds have no digests of their own.
    """
    begins = model.index(_FEATURES)
    trees, settings = model.index(_BOOSTER, begins), model.rindex(_SETTINGS)
    end = model.rindex(_NAME, trees, settings)
    pieces = model[trees:end].split(_TREE)[1:]
    wanted, content = begin + rounds - first, memoryview(model)[begins:]
    if model.find(_WEIGHTS, end, settings) >= 0 or not pieces or len(pieces) % rounds or wanted <= 0:
        return ModelDigests(content, None, first)
    wanted_trees = [_without_number(piece) for piece in pieces[-(wanted * len(pieces) // rounds) :]]
    return ModelDigests(content, digests_of(wanted_trees, model[begins:trees] + model[settings:], wanted), first)


def _without_number(tree: bytearray) -> bytearray:
    """Leave out a tree's number, and the bracket behind the tree."""
    before, _, after = tree.partition(_NUMBER)
    return before + after[after.index(_AFTER_NUMBER) : -1]


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
