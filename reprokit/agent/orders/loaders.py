"""Orders of PyTorch's DataLoader(in_order=False): in which order the workers' batches arrive."""

from __future__ import annotations

import time

from ..pytorch import private_api
from .callers import caller_outside
from .tracks import Orders
from .turns import Choices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Batch = tuple[int, Any]  # its number and its data
    Get = Callable[[], Batch]
    TryGet = Callable[[], tuple[bool, Any]]

POLL_TIMEOUT = 0.5  # seconds of one wait for a batch
BATCHES = "_reprokit_batches"  # attribute of an iterator


class LoaderOrders:
    """Records or replays the order in which batches arrive."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, module: Any) -> None:
        """Patch torch.utils.data.dataloader."""
        private_api.watch_unordered(module, self._next, POLL_TIMEOUT)

    def _next(self, iterator: Any, first: int, get: Get, try_get: TryGet) -> Batch:
        batches = vars(iterator).get(BATCHES)
        if batches is None:
            batches = self._orders.attempt(self._ordered_batches)
            setattr(iterator, BATCHES, batches)
        return get() if batches is None else batches.next(first, get, try_get)

    def _ordered_batches(self) -> OrderedBatches | None:
        caller = caller_outside(("torch",))
        choices = None if caller is None else self._orders.choices("DataLoader", caller, numbered=True)
        return None if choices is None else OrderedBatches(self._orders, choices)


class OrderedBatches:
    """The batches of one iterator: recorded as they arrive, or buffered in a replay until it is their turn."""

    def __init__(self, orders: Orders, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._buffered: dict[int, Any] = {}
        self._since = time.monotonic()

    def next(self, first: int, get: Get, try_get: TryGet) -> Batch:
        """Return the next batch; its number is recorded relative to the first one that is missing."""
        if not self._choices.is_replay:
            number, data = get()
            self._choices.note(str(number - first))
            return number, data
        text = self._choices.next()
        expected = first + int(text) if text is not None and text.isdecimal() else None
        if expected is not None and self._wait_for(expected, get, try_get):
            return expected, self._buffered.pop(expected)
        return self._buffered.popitem() if self._buffered else get()

    def _wait_for(self, expected: int, get: Get, try_get: TryGet) -> bool:
        """Wait for a batch: without limit while no other one is buffered, then until the order times out."""

        if not self._buffered:
            number, data = get()
            self._buffered[number] = data

        def has_come(_: float) -> bool:
            is_there, batch = try_get()
            if is_there:
                self._buffered[batch[0]] = batch[1]
            return expected in self._buffered

        options = {"since": self._since, "is_external": True}
        return expected in self._buffered or self._choices.until(has_come, f"batch {expected}", **options)
