"""LightGBM: its version, the seed among the parameters of a training, its rounds, and predictions of boosters."""

from __future__ import annotations

import hashlib
import struct
import sys

from ..core.patching import replace
from ..events.steps import RoundScored
from ..predictions import predictions_of
from .boosting import NODES, BoostingHooks, unpatched
from .boosting_trail import ModelDigests, digests_of, short_digest
from .estimators import noting_outside_calls
from .parameters import ParametersAdapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ..core.trail_library import Library
    from .boosting import Columns
    from .boosting_trail import RoundDigest


class LightgbmAdapter(ParametersAdapter):
    """Patches lightgbm; its estimators are patched as those of scikit-learn."""

    def instrument(self, name: str, module: Any) -> None:
        if name == "lightgbm.basic":
            replace(module.Booster, "predict", noting_outside_calls(self._agent, self._note))
            if self._hooks is None:
                self._hooks = BoostingHooks(self._agent, "lightgbm")
            replace(module.Booster, "update", self._hooks.updates(LightgbmRound))
            replace(module.Booster, "eval_train", self._hooks.scores(_trained_scored))
            replace(module.Booster, "eval_valid", self._hooks.scores(_valid_scored))
            for method in _CHANGES:
                replace(module.Booster, method, self._hooks.changes)
        else:
            super().instrument(name, module)

    def _note(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        booster = arguments[0]
        kinds = [key for key in ("raw_score", "pred_leaf", "pred_contrib") if keywords.get(key)]
        objective = str(getattr(booster, "params", {}).get("objective", ""))
        is_class = objective.startswith(("binary", "multiclass", "cross_entropy"))
        hint = "classification" if is_class and not kinds else "regression" if kinds else None
        predictions_of(self._agent).note(".".join(["lightgbm.Booster.predict", *kinds]), result, hint=hint)


_CHANGES = ("rollback_one_iter", "shuffle_models", "model_from_string", "set_leaf_output", "__del__")
_PREDICT = "_Booster__inner_predict"  # private, from 2.0 to 4.7: has predictions of data that may have been freed
_IMPORTANCE = ("split", "gain")


class LightgbmRound:
    """The last round of a booster. Data is the number of a set; the training's is 0."""

    def __init__(self, booster: Any, *_arguments: Any, **_keywords: Any) -> None:
        self.booster = booster

    def number(self) -> int:
        """Return how many rounds the model has."""
        return self.booster.current_iteration()  # type: ignore[no-any-return]

    def cells(self) -> int:
        """Return rows times columns of the training's data."""
        return self.booster.train_set.num_data() * self.booster.train_set.num_feature()  # type: ignore[no-any-return]

    reads_leaves = True

    @staticmethod
    def digests(booster: Any, first: int = 0, last: int | None = None) -> ModelDigests:
        """Digest the model, or these rounds only."""
        rounds = (booster.current_iteration() if last is None else last) - first
        text: str = booster.model_to_string(num_iteration=rounds, start_iteration=first)
        return digests_of_model(text, rounds, first)

    @staticmethod
    def whole_by_leaves(booster: Any, rounds: Sequence[RoundDigest], library: Library) -> int | None:
        """Digest the model by what can still change in it: the leaves' values; splits are in the rounds' digests.

        To write a model as text takes 4 % of the time in which it is trained. Returns None where rounds are not known.
        """
        if not rounds or len(rounds) != booster.current_iteration():
            return None
        digests, leaves = zip(*rounds)
        counts = [count for trees in leaves for count in trees]
        start = short_digest(hashlib.sha256(struct.pack("<%dQ" % len(digests), *digests)))
        read = library.address(sys.modules["lightgbm.basic"]._LIB.LGBM_BoosterGetLeafValue)  # private, from 2.0 to 4.7
        handle = getattr(booster, "_handle", None) or booster.handle  # private from 4.0 on
        packed = struct.pack("<%dI" % len(counts), *counts)
        return library.leaves(start, read, handle, packed, len(counts)) or None

    def trees(self) -> Columns:
        number = self.booster.current_iteration()
        content = self.booster.dump_model(num_iteration=1, start_iteration=number - 1)
        columns: Columns = {name: [] for name in NODES}
        for number, tree in enumerate(content["tree_info"]):
            _add_nodes(columns, number, tree["tree_structure"])
        return columns

    def importance(self) -> Iterator[tuple[str, Any]]:
        for kind in _IMPORTANCE:
            yield kind, self.booster.feature_importance(kind).astype("float64")

    def hyperparameters(self) -> Iterator[tuple[str, float]]:
        for name, value in self.booster.params.items():
            if isinstance(value, (bool, int, float)):
                yield name, float(value)

    def predictions(self, data: Any = None) -> Any:
        return getattr(self.booster, _PREDICT)(data_idx=data or 0)

    def labels(self, data: Any = None) -> Any:
        booster = self.booster
        return (booster.valid_sets[data - 1] if data else booster.train_set).get_label()

    def contributions(self) -> Any:
        """Return the SHAP values; raise an error unless the booster keeps its data (free_raw_data=False).

        A copy computes them: a booster that has computed them once aborts the process after further rounds.
        """
        data, kind = self.booster.train_set.get_data(), type(self.booster)
        copy = kind(model_str=self.booster.model_to_string(num_iteration=-1))
        return unpatched(kind.predict)(copy, data, pred_contrib=True)


def digests_of_model(text: str, rounds: int, first: int) -> ModelDigests:
    """Digest a model; dart rescales earlier trees, so that its rounds have no digests of their own.

    Settings follow the trees, such as the number of rounds to go; sizes and numbers of trees depend on what is written.
    """
    trees, _, settings = text.partition("end of trees")
    before, *pieces = trees.encode().split(b"Tree=")
    common = before.partition(b"tree_sizes=")[0]
    pieces = [piece.partition(b"\n")[2] for piece in pieces]
    whole = b"Tree=".join([common, *pieces])
    if "[boosting: dart]" in settings.splitlines() or not pieces or len(pieces) % rounds:
        return ModelDigests(whole, None, first)
    leaves = [int(piece.partition(b"num_leaves=")[2].partition(b"\n")[0]) for piece in pieces]
    return ModelDigests(whole, digests_of(pieces, common, rounds, leaves), first)


def _add_nodes(columns: Columns, tree: int, root: dict[str, Any]) -> None:
    """Add the nodes of a tree, parents before children."""
    nodes = [root]
    for node in nodes:  # grows meanwhile
        children = [node[side] for side in ("left_child", "right_child") if side in node]
        left = len(nodes) if children else -1
        nodes += children
        values = {
            "tree": tree,
            "left": left,
            "right": left + 1 if children else -1,
            "feature": node.get("split_feature", 0),
            "split": node["threshold"]
            if isinstance(node.get("threshold"), float)
            else 0.0,  # a text for a categorical split
            "gain": node.get("split_gain", 0.0),
            "cover": node.get("internal_count", node.get("leaf_count", 0)),
            "value": node.get("internal_value", node.get("leaf_value", 0.0)),
        }
        for name, value in values.items():
            columns[name].append(value)


def _trained_scored(_last: Any, result: Any, booster: Any, *_arguments: Any, **_keywords: Any) -> RoundScored:
    return RoundScored(LightgbmRound(booster), _scores(result, "train"), {})


def _valid_scored(_last: Any, result: Any, booster: Any, *_arguments: Any, **_keywords: Any) -> RoundScored:
    sets = {name: number for number, name in enumerate(booster.name_valid_sets, 1)}
    return RoundScored(LightgbmRound(booster), _scores(result, "eval"), sets)


def _scores(result: Any, mode: str) -> dict[str, tuple[float, str]]:
    return {f"{score[0]}-{score[1]}": (float(score[2]), mode) for score in result}
