"""Counts the steps of a training, and tells which of them a question is about."""

from __future__ import annotations

import weakref

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


class TrainingSteps:
    """Numbers the steps by which tensors are saved: in each, an optimizer makes at most one update.

    Optimizers that update in turn share their steps. One that starts later begins a step of its own. The numbers follow
    from updates and backward passes only, whatever else is observed.
    """

    def __init__(self) -> None:
        self._waiting: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # for the first step
        self._previous: frozenset[int] = frozenset()  # optimizers that updated in the step before
        self._current: set[int] = set()  # optimizers that have updated in this step
        self._first: dict[str, int] = {}  # the steps of first updates, by the names of optimizers in the trail
        self.step = self.updates = 0
        self.has_ended = False  # only another optimizer may still update in it, without a backward pass before

    @property
    def count(self) -> int:
        """Return the number of steps that have ended."""
        return self.step + self.has_ended

    def summary(self) -> dict[str, object]:
        """Return what a proof needs to know: the numbers of steps and updates, and where optimizers began."""
        return {"steps": self.count, "updates": self.updates, "first": self._first}

    def expect(self, optimizer: object) -> None:
        """Wait in the first step for an optimizer that exists."""
        if not self.count:
            self._waiting[id(optimizer)] = optimizer

    def next_step(self, optimizer: object = None) -> int:
        """Return the step to which a computation belongs, or another update by this optimizer."""
        return self.count if optimizer is None else self.step + (_key(optimizer) in self._current)

    def begin_backward(self) -> None:
        """Begin a new step if this one has ended."""
        if self.has_ended:
            self._begin()

    def _begin(self) -> None:
        self._previous, self._current = frozenset(self._current), set()
        if not self.step:
            self._waiting.clear()
        self.step, self.has_ended = self.step + 1, False

    def updated(self, optimizer: object) -> None:
        """Count an update, which ends the step unless optimizers that shared the step before have yet to update."""
        key = _key(optimizer)
        self.updates += 1
        if key in self._current:
            self._begin()
        self._current.add(key)
        name = str(getattr(optimizer, "name", ""))
        if name:
            self._first.setdefault(name, self.step)
        partners = self._previous if key in self._previous else frozenset(self._waiting)
        self.has_ended = self.has_ended or partners <= self._current


def _key(optimizer: object) -> int:
    # TensorFlow creates an object for each step; the optimizer in it, if known, lives longer.
    wrapped = getattr(optimizer, "optimizer", None)
    return id(optimizer if wrapped is None else wrapped)
