"""Orders of multiprocessing's pools: in which order the results of imap_unordered came."""

from __future__ import annotations

from functools import partial

from ..core.patching import Function, replace
from .tracks import Orders, caller_outside
from .turns import HeldBack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


POOL = "multiprocessing.pool"
RESULTS = "_reprokit_results"  # attribute of an iterator
SLICE = 0.5  # seconds for which a result is waited for at once


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
            caller = caller_outside((POOL,))
            choices = None if caller is None else self._orders.choices("imap_unordered", caller, numbered=True)
            setattr(iterator, RESULTS, None if choices is None else HeldBack(self._orders, choices))
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
            while True:
                try:
                    return original(iterator, SLICE)
                except none_yet:
                    results.look(give)

        return next_result
