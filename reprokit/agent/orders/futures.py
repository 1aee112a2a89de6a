"""Orders of concurrent.futures: which future was done first, as as_completed and wait tell it.

Futures are numbered by the thread that made them. The sets that wait returns are iterated in that order, as that of
their addresses does not repeat. Of as_completed the rank of each future among those left is noted.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left

from ..core.patching import Function, replace
from .turns import Choices, Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from .tracks import Orders

NUMBER = "_reprokit_number"  # attribute of a Future
SLICE = 0.5  # seconds for which a future is waited for at once
END = "."  # of what a call of wait returned; of as_completed, that it has lost its patience


def _number(future: Any) -> tuple[str, int]:
    number: tuple[str, int] = getattr(future, NUMBER, ("", 0))
    return number


class NumberedFutures(set):  # type: ignore[type-arg]
    """A set of futures that is iterated in the order in which they were made."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=_number))

    def pop(self) -> Any:
        future = next(iter(self))
        self.remove(future)
        return future


class FutureOrders:
    """Records the order in which futures are done, or gives it again."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, module: Any) -> None:
        """Watch concurrent.futures._base, before anybody takes its functions."""
        self._wait, self._module = module.wait, module
        replace(module.Future, "__init__", self._make_init)
        replace(module, "as_completed", self._make_as_completed)
        replace(module, "wait", self._make_wait)

    def _make_init(self, original: Function) -> Function:
        orders = self._orders

        def initialize(future: Any, *arguments: Any, **keywords: Any) -> None:
            original(future, *arguments, **keywords)
            mine = orders.actors.mine
            mine.futures += 1
            setattr(future, NUMBER, (mine.name, mine.futures))

        return initialize

    def _make_as_completed(self, original: Function) -> Function:
        def as_completed(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
            choices = self._orders.choices("as_completed", sys._getframe(1))
            if choices is None:
                completed: Iterator[Any] = original(fs, timeout)
                return completed
            if choices.is_replay:
                return self._completed_again(original, fs, timeout, choices)
            return self._note_completed(original, fs, timeout, choices)

        return as_completed

    def _note_completed(
        self, original: Function, fs: Iterable[Any], timeout: float | None, choices: Choices
    ) -> Iterator[Any]:
        futures = set(fs)
        numbers = sorted(map(_number, futures))
        completed = original(futures, timeout)
        del fs, futures  # as_completed keeps no future that it has given
        try:
            for future in completed:
                rank = bisect_left(numbers, _number(future))
                del numbers[rank]
                choices.note(str(rank))
                given = [future]
                del future
                yield given.pop()  # and is not kept here while the next one is waited for
        except self._module.TimeoutError:
            choices.note(END)
            raise

    def _completed_again(
        self, original: Function, fs: Iterable[Any], timeout: float | None, choices: Choices
    ) -> Iterator[Any]:
        since = time.monotonic()
        futures = sorted(set(fs), key=_number)
        del fs
        while futures:
            text = choices.next()
            if text == END:
                raise self._module.TimeoutError(f"{len(futures)} futures unfinished")
            rank = int(text) if text is not None and text.isdecimal() else len(futures)
            if rank >= len(futures) or not self._is_done(futures[rank], futures, timeout, since):
                choices.give_up()
                yield from original(futures, timeout)
                return
            yield futures.pop(rank)

    def _is_done(self, future: Any, futures: list[Any], timeout: float | None, since: float) -> bool:
        """Wait for a future as long as none of the others is done, and with patience if one is."""
        patience = None
        while not self._wait([future], SLICE).done:
            if timeout is None and not any(other.done() for other in futures):
                continue
            patience = patience or Patience(self._orders, since)
            if patience.is_over():
                return False
        return True

    def _make_wait(self, original: Function) -> Function:
        module, numbered = self._module, NumberedFutures

        def wait(fs: Iterable[Any], timeout: float | None = None, return_when: str = module.ALL_COMPLETED) -> Any:
            futures = sorted(set(fs), key=_number)
            is_open = timeout is not None or return_when != module.ALL_COMPLETED
            choices = self._orders.choices("wait", sys._getframe(1)) if is_open else None
            done = None
            if choices is not None and choices.is_replay:
                done = self._done_again(futures, choices, timeout)
            if done is None:
                done = original(futures, timeout, return_when).done
                if choices is not None and not choices.is_replay:
                    for rank in [rank for rank, future in enumerate(futures) if future in done]:
                        choices.note(str(rank))
                    choices.note(END)
            return module.DoneAndNotDoneFutures(numbered(done), numbered(set(futures).difference(done)))

        return wait

    def _done_again(self, futures: list[Any], choices: Choices, timeout: float | None) -> list[Any] | None:
        """Return those that were done in the recording, when they are; None where that is not known."""
        since = time.monotonic()
        done = []
        for text in iter(choices.next, END):
            if text is None or not text.isdecimal() or int(text) >= len(futures):
                return None
            done.append(futures[int(text)])
        if all(self._is_done(future, futures, timeout, since) for future in done):
            return done
        choices.give_up()
        return None
