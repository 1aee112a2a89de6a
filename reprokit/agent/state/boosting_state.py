"""Reads and restores what rounds of boosting start from beside the booster: generators, callbacks, variables.

No model file holds the generator by which a booster draws rows or columns; the settings that make it draw are noted.
"""

from __future__ import annotations

import functools
import sys

from ..capture import trees
from ..capture.random_states import as_values, generator_entries
from ..capture.store import DTYPES, NAMES, Part, free_name
from ..core.state_entries import StateKind, put_back, values_of
from ..events.steps import RoundComputed, UpdateDone, UpdateDue
from .answers import NUMBERS, array_text, generator_digests, text_digest
from .script_variables import VariableReader, VariableSetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..capture.store import SnapshotFile
    from ..capture.trees import Node
    from ..events.steps import Handler, TrainingEvent
    from .answers import StateAnswers

OF_XGBOOST = "subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode"
OF_LIGHTGBM = "bagging_fraction", "feature_fraction", "feature_fraction_bynode"
VARIABLES = StateKind.VARIABLES.value


class BoostingState:
    """Reads and restores state when a round is due, and logs the settings of a resumed training's first round."""

    def __init__(self, answers: StateAnswers) -> None:
        self._answers, self.failed = answers, answers.failed
        self._has_settings = bool(answers.every or answers.saves_state)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDue: self._update_due, RoundComputed: self._round_computed, UpdateDone: self._updated}

    def _update_due(self, _event: UpdateDue) -> None:
        answers = self._answers
        snapshot = answers.snapshot_to_restore("state") if answers.is_first else None
        if snapshot is not None:
            self._restore(snapshot)
        if answers.is_logged:
            answers.log_parts(self._digests())
        if answers.is_first and answers.saves_state:
            answers.attempt("the state was not kept", self._save)

    def _updated(self, event: UpdateDone) -> None:
        self._answers.window.updated(event.optimizer)

    def _round_computed(self, event: RoundComputed) -> None:
        if self._has_settings:
            return
        self._has_settings = True
        settings = dict(event.round.hyperparameters())
        names = OF_XGBOOST + (OF_LIGHTGBM if settings.get("bagging_freq") else OF_LIGHTGBM[1:])
        shares = [f"{name} = {settings[name]:g}" for name in names if settings.get(name, 1) < 1]
        if shares:
            self._answers.log(draws=", ".join(shares))

    def _digests(self) -> dict[str, dict[str, str]]:
        digests = generator_digests(generator_entries())
        if self._answers.is_first and not self._answers.every:
            reader = VariableReader(ArrayVariables(), ())
            digests[VARIABLES] = self._answers.attempt(VARIABLES, reader.texts, sys._getframe(), text_digest) or {}
        return digests

    def _save(self) -> None:
        collector = ArrayCollector()
        states = as_values(values_of(generator_entries()))
        random = {name: trees.pack(state, functools.partial(collector.put, "random")) for name, state in states.items()}
        differing, resumed = VariableReader(ArrayVariables(), ()).differing, self._answers.resumed
        rows = self._answers.attempt(VARIABLES, differing, sys._getframe(), text_digest, resumed) or []
        put = functools.partial(collector.put, VARIABLES)
        own = [[head, tail, trees.with_leaves(node, put)] for head, tail, node in rows]
        self._answers.save("state", {"random": random, "script": own}, collector.parts)

    def _restore(self, snapshot: SnapshotFile) -> None:
        """Restore the parts of the state that the question names."""
        parts, attempt = self._answers.parts, self._answers.attempt
        chosen = [entry for entry in generator_entries() if entry.kind.value in parts]
        get = functools.partial(trees.unpack, get=functools.partial(_array, snapshot))
        attempt("generators", put_back, chosen, snapshot.header["random"], get)
        if VARIABLES in parts:
            setter = VariableSetter(ArrayVariables(snapshot), self._answers.variables)
            attempt(VARIABLES, setter.restore, snapshot.header["script"], sys._getframe())


class ArrayCollector:
    """Collects the arrays of a snapshot."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._taken: set[str] = set()

    def put(self, name: str, value: Any) -> Node | None:
        """Add an array; return its node, or None for what cannot be saved."""
        if not (hasattr(type(value), "__array_interface__") or type(value).__name__ == "array"):
            return None
        array = sys.modules["numpy"].array(value)
        dtype = DTYPES.get(array.dtype.name)
        if dtype is None:
            return None
        array = array.astype(array.dtype.newbyteorder("<"))
        self.parts.append(Part(free_name(name, self._taken), dtype, array.shape, array.nbytes, array.tobytes))
        return {"tensor": self.parts[-1].name}


class ArrayVariables:
    """The arrays of a script."""

    def __init__(self, snapshot: SnapshotFile | None = None) -> None:
        self._snapshot = snapshot

    def is_left_out(self, value: Any) -> bool:
        return value.dtype.kind not in NUMBERS

    def size(self, value: Any) -> int:
        return int(value.nbytes)

    def leaf(self, value: Any) -> Node | None:
        return {"held": value} if hasattr(type(value), "__array_interface__") else None

    def node(self, value: Any) -> Node:
        return {"array" if hasattr(value, "__setitem__") else "number": {"held": value}}

    def text(self, node: Node) -> str:
        ((kind, value),) = node.items()
        return self.text(value) if kind != "held" else array_text(sys.modules["numpy"].asarray(value))

    def restore(self, node: Node, own: Any) -> Any:
        ((kind, content),) = node.items()
        if kind not in ("array", "number"):
            return trees.unpack(node, functools.partial(_array, self._snapshot))
        new = _array(self._snapshot, content)
        if kind == "number":
            return new[()]
        if type(own) is type(new) and own.base is None and own.shape == new.shape and own.dtype == new.dtype:
            if own.flags.writeable:
                own[...] = new
                return own
        return new


def _array(snapshot: Any, node: Node) -> Any:
    """Return a copy of a snapshot's array."""
    tensor = snapshot.tensors[node["tensor"]]
    return sys.modules["numpy"].frombuffer(bytearray(tensor.data), NAMES[tensor.dtype]).reshape(tensor.shape)
