"""Logs the updates of eager loops of TensorFlow, and gives first results of layers and tapes again.

Beside the small variables that changed, an update's record has the generator of eager operations where that has drawn.
"""

from __future__ import annotations

import sys
import weakref
from array import array

from ..capture.tensorflow_state import size_of
from ..tensorflow import private_api
from ..tensorflow.training_state import plain, resource_id
from .call_log import MAX_VARIABLE
from .tensorflow_calls import MAX_SMALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .call_log import Tensor
    from .tensorflow_calls import FunctionCalls, RegisteredVariables, WatchedFunction

    Function = Callable[..., Any]

MAX_RESULTS = 256  # that are remembered
_VERSION = 3  # of the state of Python's generators
_BY_VALUE = frozenset([bool, int, float, str, type(None)])


class EagerUpdates:
    """The updates of eager loops, as the log of calls has them."""

    def __init__(self, registered: RegisteredVariables, calls: FunctionCalls) -> None:
        self._registered, self._calls = registered, calls
        self._count, self._small = -1, list[int]()
        self._words: Sequence[int] = ()  # of the generator of eager operations, at the last update

    def of(self, optimizer: Any) -> WatchedFunction:
        """Return what is logged of an optimizer's updates: all small variables that there are."""
        if self._count != self._registered.count:
            self._count = self._registered.count
            small = [number for number, each in self._registered.alive() if 0 < size_of(each) <= MAX_VARIABLE]
            self._small = small[-MAX_SMALL:]
        watched = self._calls.of(optimizer)
        watched.variables = self._small
        return watched

    def drawn(self) -> list[Tensor | None]:
        """Return the generator of eager operations, as far as it has changed since the last update."""
        generator = private_api.seed_generator()
        words = () if generator is None else generator.getstate()[1]
        before, self._words = self._words, words
        if words == before:
            return []
        changed = words[-1:] if words[:-1] == before[:-1] else words
        return [("uint32", (len(changed),), array("I", changed).tobytes())]

    def put_back(self, tensors: Sequence[Tensor | None]) -> None:
        """Put the generator in that an update's record has; raises ValueError if that is none."""
        generator = private_api.seed_generator()
        for tensor in tensors:
            changed = array("I", (tensor and tensor[2]) or b"")
            self._words = (*self._words[:-1], *changed) if len(changed) == 1 else tuple(changed)
            if generator is None or len(self._words) != 625:
                raise ValueError("the script has no generator of eager operations as its recording has")
        if generator is not None and self._words:
            generator.setstate((_VERSION, tuple(self._words), None))


class FirstEagerResults:
    """The first results of layers, and of gradient tapes, for each kind of arguments; eager tensors never change."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}
        self._owners: list[Any] = []  # layers and variables, so that their ids stay unique
        self._is_within = False  # a call whose result is being computed
        self._has_given = False  # whether tapes may lack what a layer would have computed
        self._applied: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()

    def of_layer(self, call: Function, has_logged: Callable[[], int], layer: Any, arguments: Any, keywords: Any) -> Any:
        """Return a layer's first result; compute it in the first call, and where functions within it are logged."""
        kinds = [_kind(leaf) for leaf in _leaves((arguments, keywords))]
        if self._is_within or None in kinds or not getattr(layer, "weights", None):
            return self._within(call, layer, *arguments, **keywords)
        key = (id(layer), private_api.is_watched(), tuple(kinds))
        if key in self._results:
            self._has_given = True
            return self._results[key]
        before = has_logged()
        result = self._within(call, layer, *arguments, **keywords)
        if has_logged() == before:
            self._remember(key, [layer], result)
        return result

    def _within(self, call: Function, *arguments: Any, **keywords: Any) -> Any:
        outer, self._is_within = self._is_within, True
        try:
            return call(*arguments, **keywords)
        finally:
            self._is_within = outer

    def _remember(self, key: Any, owners: list[Any], result: Any) -> None:
        if len(self._results) < MAX_RESULTS:
            self._owners += owners
            self._results[key] = result

    def of_tape(
        self, call: Function, tape: Any, target: Any, sources: Any, arguments: Any, keywords: dict[str, Any]
    ) -> Any:
        """Return the first gradients of a tape by these sources; zeros where it lacks what was left out."""
        leaves = _leaves(sources)
        key = ("tape", tuple(_source(leaf) for leaf in leaves))
        if key not in self._results:
            if self._has_given:
                zeros = [_tensorflow().zeros(leaf.shape, leaf.dtype) for leaf in map(plain, leaves)]
                result = _tensorflow().nest.pack_sequence_as(sources, zeros)
            else:
                result = call(tape, target, sources, *arguments, **keywords)
            self._remember(key, leaves, result)
            return result
        return self._results[key]

    def may_skip(self, optimizer: Any, variables: list[Any]) -> bool:
        """Return whether an optimizer has updated these variables, so that a further update makes none of its own."""
        applied = self._applied.setdefault(optimizer, set())
        ids = set(map(resource_id, variables))
        is_known = ids <= applied
        applied |= ids
        return is_known


def _leaves(value: Any) -> list[Any]:
    return list(_tensorflow().nest.flatten(value))


def _kind(leaf: Any) -> Any:
    """Return what calls must share to have results of the same shapes; None for what has no value, as in a graph."""
    if type(leaf) in _BY_VALUE:
        return type(leaf), leaf
    if private_api.has_value(leaf) or type(leaf).__module__ == "numpy" or hasattr(leaf, "assign"):
        return "tensor", tuple(leaf.shape), str(leaf.dtype)
    return None if hasattr(leaf, "shape") else type(leaf)


def _source(leaf: Any) -> Any:
    is_variable = hasattr(leaf, "assign")
    return resource_id(leaf) if is_variable else (tuple(leaf.shape), str(leaf.dtype))


def _tensorflow() -> Any:
    return sys.modules["tensorflow"]
