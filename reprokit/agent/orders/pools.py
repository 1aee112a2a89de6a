"""Orders of multiprocessing's pools: in which order the results of imap_unordered came."""

from __future__ import annotations

import sys
import time
from _thread import allocate_lock
from functools import partial

from ..core.patching import replace
from .turns import Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .tracks import Orders
    from .turns import Choices

    Function = Callable[..., Any]

POOL = "multiprocessing.pool"
RESULTS = "_reprokit_results"  # attribute of an iterator
SLICE = 0.5  # seconds for which a result is waited for at once


class ResultsInOrder:
    """The results of one iterator: noted as they come, or held back until it is their turn."""

    def __init__(self, orders: Orders, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._count = 0  # of results that were given on
        self._lock = allocate_lock()
        self._early: dict[int, Any] = {}
        self._wanted = -1
        self._since = time.monotonic()

    def come(self, number: int, result: Any, give: Function) -> None:
        """Take a result from the pool's thread: numbers are noted by how far they are from the count of results."""
        if not self._choices.is_replay:
            self._choices.note(str(number - self._count))
            self._count += 1
            give(number, result)
            return
        with self._lock:
            self._early[number] = result
            while self._early and self._next_wanted() in self._early:
                self._count += 1
                give(self._wanted, self._early.pop(self._wanted))
                self._wanted = -1
            if self._wanted < 0:  # nothing more is known
                self._release(give)

    def _next_wanted(self) -> int:
        if self._wanted < 0:
            text = self._choices.next()
            self._wanted = -1 if text is None else self._count + int(text)
        return self._wanted

    def _release(self, give: Function) -> None:
        for number in list(self._early):
            give(number, self._early.pop(number))

    def wait(self, call: Function, give: Function, none_yet: type[Exception]) -> Any:
        """Wait for the next result: as long as none is held back, and with patience if one is."""
        patience = None
        while True:
            try:
                return call(SLICE)
            except none_yet:
                patience = (patience or Patience(self._orders, self._since)) if self._early else None
                if patience is not None and patience.is_over():
                    with self._lock:
                        self._choices.give_up()
                        self._wanted = -1
                        self._release(give)


class PoolOrders:
    """Records in which order results come, or gives it again."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, pool: Any) -> None:
        """Watch the module multiprocessing.pool."""
        unordered = pool.IMapUnorderedIterator
        unordered.__init__ = self._make_init(unordered.__init__)
        replace(unordered, "_set", self._make_set)
        if self._orders.is_replay:
            unordered.next = unordered.__next__ = self._make_next(pool.IMapIterator.next, pool.TimeoutError)

    def _make_init(self, original: Function) -> Function:
        def initialize(iterator: Any, *arguments: Any) -> None:
            caller: FrameType | None = sys._getframe(1)
            while caller is not None and caller.f_globals.get("__name__") == POOL:
                caller = caller.f_back
            choices = None if caller is None else self._orders.choices("imap_unordered", caller, numbered=True)
            setattr(iterator, RESULTS, None if choices is None else ResultsInOrder(self._orders, choices))
            original(iterator, *arguments)

        return initialize

    def _make_set(self, original: Function) -> Function:
        def _set(iterator: Any, number: int, result: Any) -> None:
            results = iterator.__dict__.get(RESULTS)
            if results is None:
                original(iterator, number, result)
            else:
                results.come(number, result, partial(original, iterator))

        return _set

    def _make_next(self, original: Function, none_yet: type[Exception]) -> Function:
        def next_result(iterator: Any, timeout: float | None = None) -> Any:
            results = iterator.__dict__.get(RESULTS)
            if results is None or timeout is not None:
                return original(iterator, timeout)
            give = partial(type(iterator)._set.__wrapped__, iterator)
            return results.wait(lambda seconds: original(iterator, seconds), give, none_yet)

        return next_result
