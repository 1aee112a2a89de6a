"""Counts the steps of a training, and tells which of them a question is about."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


class StepWindow:
    """The steps of this process: step n begins once an optimizer has made n updates, and none is one behind it."""

    def __init__(self, steps: Mapping[str, Any]) -> None:
        self._first, self._last = int(steps.get("first") or 0), steps.get("last")
        self._updates: dict[int, int] = {}  # by identity of the optimizer
        self.step = 0
        self._update_flags()

    def _update_flags(self) -> None:
        self.is_over = self._last is not None and self.step > self._last
        self.is_open = self._first <= self.step and not self.is_over

    def updated(self, optimizer: object, optimizers: Iterable[object] = ()) -> bool:
        """Count an update; return whether it begins a new step.

        An optimizer that is one update behind, as that of a generator behind its critic's, still takes this step.
        """
        key = _key(optimizer)
        count = self._updates[key] = self._updates.get(key, 0) + 1
        is_new = count > self.step and all(self._updates.get(_key(other), 0) != count - 1 for other in optimizers)
        if is_new:
            self.step = count
            self._update_flags()
        return is_new

    def is_new(self, optimizer: object) -> bool:
        """Return whether another update by this optimizer begins a new step."""
        return self._updates.get(_key(optimizer), 0) >= self.step


def _key(optimizer: object) -> int:
    # TensorFlow creates an object for each step; the optimizer in it, if known, lives longer.
    wrapped = getattr(optimizer, "optimizer", None)
    return id(optimizer if wrapped is None else wrapped)
