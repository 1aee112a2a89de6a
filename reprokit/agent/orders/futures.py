"""Orders of concurrent.futures: which future completes first, as reported by as_completed, wait and callbacks.

Futures are numbered by the thread that created them. The sets that wait returns are iterated in this order, as the
order of addresses does not repeat. Of as_completed the rank of each future among the remaining ones is recorded.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left

from ..core.patching import Function, replace
from .callers import caller_outside
from .turns import Choices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import Any

    from .tracks import Orders

NUMBER, RESULTS = "_reprokit_number", "_reprokit_results"  # attributes of a Future
END = "."  # ends the futures of one call of wait; of as_completed: it timed out


def _number(future: Any) -> tuple[str, int]:
    number: tuple[str, int] = getattr(future, NUMBER, ("", 0))
    return number


def _make_in_turn(original: Function) -> Function:
    def call(future: Any, argument: Any) -> Any:
        results = vars(future).get(RESULTS)
        return original(future, argument) if results is None else results.enter(original, future, argument)

    return call


def _caller() -> FrameType:
    """Return the frame of the script's call, which may come through the agent's own observers."""
    return caller_outside(()) or sys._getframe(1)


class NumberedFutures(set):  # type: ignore[type-arg]
    """A set of futures that is iterated in the order in which they were created."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=_number))

    def pop(self) -> Any:
        future = next(iter(self))
        self.remove(future)
        return future


class FutureOrders:
    """Records or replays the order in which futures complete."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, module: Any) -> None:
        """Patch concurrent.futures._base, before other modules import its functions."""
        self._wait, self._module = module.wait, module
        replace(module.Future, "__init__", self._make_init)
        for name in ("set_result", "set_exception", "add_done_callback"):
            replace(module.Future, name, _make_in_turn)
        replace(module, "as_completed", self._make_as_completed)
        replace(module, "wait", self._make_wait)

    def _make_init(self, original: Function) -> Function:
        orders = self._orders

        def initialize(future: Any, *arguments: Any, **keywords: Any) -> None:
            original(future, *arguments, **keywords)
            actor = orders.actors.current
            actor.futures += 1
            setattr(future, NUMBER, (actor.name, actor.futures))

        return initialize

    def _make_as_completed(self, original: Function) -> Function:
        def as_completed(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
            choices = self._orders.choices("as_completed", _caller())
            if choices is None:
                completed: Iterator[Any] = original(fs, timeout)
                return completed
            if choices.is_replay:
                return self._replay_completed(original, fs, timeout, choices)
            return self._record_completed(original, fs, timeout, choices)

        return as_completed

    def _record_completed(
        self, original: Function, fs: Iterable[Any], timeout: float | None, choices: Choices
    ) -> Iterator[Any]:
        futures = set(fs)
        numbers = sorted(map(_number, futures))
        completed = original(futures, timeout)
        del fs, futures  # as_completed keeps no reference to a future that it has yielded
        try:
            for future in completed:
                rank = bisect_left(numbers, _number(future))
                del numbers[rank]
                choices.note(str(rank))
                yielded = [future]
                del future
                yield yielded.pop()  # no reference is kept while the next one is awaited
        except self._module.TimeoutError:
            choices.note(END)
            raise

    def _replay_completed(
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
            if rank >= len(futures) or not self._is_done(futures[rank], futures, choices, timeout, since):
                yield from original(futures, timeout)
                return
            yield futures.pop(rank)

    def _is_done(self, future: Any, futures: list[Any], choices: Choices, timeout: float | None, since: float) -> bool:
        """Wait for a future: without limit while no other one is done, then until the order times out."""
        if timeout is None:
            self._wait(futures, None, self._module.FIRST_COMPLETED)
        has_come = lambda seconds: self._wait([future], seconds).done  # noqa: E731
        return future.done() or bool(choices.until(has_come, "a future", since=since))

    def _make_wait(self, original: Function) -> Function:
        module, numbered = self._module, NumberedFutures

        def wait(fs: Iterable[Any], timeout: float | None = None, return_when: str = module.ALL_COMPLETED) -> Any:
            futures = sorted(set(fs), key=_number)
            may_vary = timeout is not None or return_when != module.ALL_COMPLETED
            choices = self._orders.choices("wait", _caller()) if may_vary else None
            done = None
            if choices is not None and choices.is_replay:
                done = self._replay_wait(futures, choices, timeout)
            if done is None:
                done = original(futures, timeout, return_when).done
                if choices is not None and not choices.is_replay:
                    for rank in [rank for rank, future in enumerate(futures) if future in done]:
                        choices.note(str(rank))
                    choices.note(END)
            return module.DoneAndNotDoneFutures(numbered(done), numbered(set(futures).difference(done)))

        return wait

    def _replay_wait(self, futures: list[Any], choices: Choices, timeout: float | None) -> list[Any] | None:
        """Wait until the futures that were done in the recording are, and return them; None if those are unknown."""
        since = time.monotonic()
        done = []
        for text in iter(choices.next, END):
            if text is None or not text.isdecimal() or int(text) >= len(futures):
                return None
            done.append(futures[int(text)])
        is_as_recorded = all(self._is_done(future, futures, choices, timeout, since) for future in done)
        return done if is_as_recorded else None
