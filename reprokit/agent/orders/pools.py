"""Orders of multiprocessing's pools: in which order the results of imap_unordered came."""

from __future__ import annotations

from functools import partial

from ..core.patching import Function, replace
from .callers import caller_outside
from .tracks import Orders
from .turns import ReorderBuffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


POOL = "multiprocessing.pool"
RESULTS = "_reprokit_results"  # attribute of an iterator
POLL_TIMEOUT = 0.5  # seconds of one wait for a result


class PoolOrders:
    """Records or replays the order in which results come."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, pool: Any) -> None:
        """Patch the module multiprocessing.pool."""
        unordered = pool.IMapUnorderedIterator
        unordered.__init__ = self._make_init(unordered.__init__)
        replace(unordered, "_set", self._make_set)
        if self._orders.is_replay:
            unordered.next = unordered.__next__ = self._make_next(pool.IMapIterator.next, pool.TimeoutError)

    def _make_init(self, original: Function) -> Function:
        def initialize(iterator: Any, *arguments: Any) -> None:
            caller = caller_outside((POOL,))
            choices = None if caller is None else self._orders.choices("imap_unordered", caller, numbered=True)
            setattr(iterator, RESULTS, None if choices is None else ReorderBuffer(self._orders, choices))
            original(iterator, *arguments)

        return initialize

    def _make_set(self, original: Function) -> Function:
        def _set(iterator: Any, number: int, result: Any) -> None:
            results = iterator.__dict__.get(RESULTS)
            if results is None:
                original(iterator, number, result)
            else:
                results.put(number, result, partial(original, iterator))

        return _set

    def _make_next(self, original: Function, timeout_error: type[Exception]) -> Function:
        def next_result(iterator: Any, timeout: float | None = None) -> Any:
            results = iterator.__dict__.get(RESULTS)
            if results is None or timeout is not None:
                return original(iterator, timeout)
            pass_on = partial(type(iterator)._set.__wrapped__, iterator)
            while True:
                try:
                    return original(iterator, POLL_TIMEOUT)
                except timeout_error:
                    results.flush_overdue(pass_on)

        return next_result
