"""Outcomes of polls and timed waits: `Event.is_set`, and `wait` of threading's Event and Condition with a timeout.

Only of the user's code: their locks are ordered (locks.py), so that a thread that waited sees the same state in a
replay. What the calls return still depends on time, and is recorded.
"""

from __future__ import annotations

import sys
import time

from ..core.patching import Function, replace
from .locks import OrderedLock
from .turns import Choices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .tracks import Orders


class ConditionOrders:
    """Records or replays what polls and timed waits return."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, threading: Any) -> None:
        """Patch the classes of the module threading."""
        self._file, self._wait = threading.__file__, threading.Condition.wait
        replace(threading.Event, "is_set", self._make_is_set)
        replace(threading.Event, "wait", lambda original: self._make_wait(original, _condition_of))
        replace(threading.Condition, "wait", lambda original: self._make_wait(original, lambda condition: condition))
        replace(threading.Condition, "wait_for", self._make_wait_for)

    def _choices(self, kind: str, condition: Any, caller: FrameType) -> Choices | None:
        """Return the outcomes at a place; None if the condition is a library's or threading itself is the caller."""
        is_watched = (
            issubclass(type(getattr(condition, "_lock", None)), OrderedLock) and caller.f_code.co_filename != self._file
        )
        return self._orders.choices(kind, caller) if is_watched else None

    def _make_is_set(self, original: Function) -> Function:
        def is_set(event: Any) -> bool:
            choices = self._choices("is_set", _condition_of(event), sys._getframe(1))
            return bool(original(event)) if choices is None else choices.poll(lambda: bool(original(event)))

        return is_set

    def _make_wait(self, original: Function, condition_of: Callable[[Any], Any]) -> Function:
        def wait(waitable: Any, timeout: Any = None) -> Any:
            if timeout is None:
                return original(waitable)
            choices = self._choices("wait", condition_of(waitable), sys._getframe(1))
            result = original(waitable, timeout)
            return result if choices is None else bool(choices.as_recorded(int(result)))

        return wait

    def _make_wait_for(self, original: Function) -> Function:
        def wait_for(condition: Any, predicate: Function, timeout: Any = None) -> Any:
            choices = self._choices("wait_for", condition, sys._getframe(1)) if timeout is not None else None
            if choices is None:
                return original(condition, predicate, timeout)
            end = time.monotonic() + timeout
            result = predicate()
            while not result:
                left = end - time.monotonic()
                if not choices.as_recorded(int(left > 0)):
                    break
                # In one wait: each ends with a turn of the lock, of which the recording has one.
                if not self._wait(condition, left if left > 0 else self._orders.waits.patience) and left <= 0:
                    choices.give_up()
                result = predicate()
            return result

        return wait_for


def _condition_of(event: Any) -> Any:
    """Return the condition of an event; None for a user's subclass without one."""
    return getattr(event, "_cond", None)
