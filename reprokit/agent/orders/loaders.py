"""Orders of PyTorch's DataLoader(in_order=False): in which order the workers' batches came."""

from __future__ import annotations

import time

from ..pytorch import private_api
from .tracks import Orders, caller_outside
from .turns import Choices, Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Batch = tuple[int, Any]  # its number and its data
    Get = Callable[[], Batch]
    TryGet = Callable[[], tuple[bool, Any]]

SLICE = 0.5  # seconds for which a batch is waited for at once
BATCHES = "_reprokit_batches"  # attribute of an iterator


class LoaderOrders:
    """Records in which order batches come, or gives it again."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, module: Any) -> None:
        """Watch torch.utils.data.dataloader."""
        private_api.watch_unordered(module, self._next, SLICE)

    def _next(self, iterator: Any, first: int, get: Get, try_get: TryGet) -> Batch:
        batches = vars(iterator).get(BATCHES)
        if batches is None:
            batches = self._orders.attempt(self._of_iterator)
            setattr(iterator, BATCHES, batches)
        return get() if batches is None else batches.next(first, get, try_get)

    def _of_iterator(self) -> BatchesInOrder | None:
        caller = caller_outside(("torch",))
        choices = None if caller is None else self._orders.choices("DataLoader", caller, numbered=True)
        return None if choices is None else BatchesInOrder(self._orders, choices)


class BatchesInOrder:
    """The batches of one iterator: noted as they come, or held back until it is their turn."""

    def __init__(self, orders: Orders, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._early: dict[int, Any] = {}
        self._since = time.monotonic()

    def next(self, first: int, get: Get, try_get: TryGet) -> Batch:
        """Return the batch whose turn it is: numbers are noted by how far they are from the first that is missing."""
        if not self._choices.is_replay:
            number, data = get()
            self._choices.note(str(number - first))
            return number, data
        text = self._choices.next()
        wanted = first + int(text) if text is not None and text.isdecimal() else None
        if wanted is not None and self._is_here(wanted, get, try_get):
            return wanted, self._early.pop(wanted)
        if text is not None:
            self._choices.give_up()
        return self._early.popitem() if self._early else get()

    def _is_here(self, wanted: int, get: Get, try_get: TryGet) -> bool:
        """Wait for a batch as long as no other one is held back, and with patience if one is."""
        patience = Patience(self._orders, self._since)
        while wanted not in self._early:
            if not self._early:
                number, data = get()
                self._early[number] = data
                patience = Patience(self._orders, self._since)
                continue
            is_there, batch = try_get()
            if is_there:
                self._early[batch[0]] = batch[1]
            elif patience.is_over():
                return False
        return True
