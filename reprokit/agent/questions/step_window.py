"""Counts the steps of a training, and says which of them a question is about."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class StepWindow:
    """The steps of this process: step n is under way once some optimizer has made n updates."""

    def __init__(self, steps: Mapping[str, Any]) -> None:
        self._first, self._last = int(steps.get("first") or 0), steps.get("last")
        self._updates: dict[int, int] = {}  # by identity of the optimizer
        self.step = 0
        self._look()

    def _look(self) -> None:
        self.is_over = self._last is not None and self.step > self._last
        self.is_open = self._first <= self.step and not self.is_over

    def updated(self, optimizer: object) -> bool:
        """Count an update; return whether a new step has begun with it."""
        key = _key(optimizer)
        count = self._updates[key] = self._updates.get(key, 0) + 1
        is_new = count > self.step
        if is_new:
            self.step = count
            self._look()
        return is_new

    def is_new(self, optimizer: object) -> bool:
        """Return whether another update by this optimizer begins a new step."""
        return self._updates.get(_key(optimizer), 0) >= self.step


def _key(optimizer: object) -> int:
    # TensorFlow makes a record of each step, with the optimizer that lives on, if one is known.
    known = getattr(optimizer, "optimizer", None)
    return id(optimizer if known is None else known)
