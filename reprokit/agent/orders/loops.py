"""Orders of asyncio: in which order other threads wake a loop, with the result of a task or with a callback.

What a loop does between two wake-ups follows from its own callbacks. How many of these it has executed before a wake-up
does not repeat: only the order of wake-ups is replayed.
"""

from __future__ import annotations

import sys
import time
from _thread import RLock, get_ident
from collections import deque

from ..core.patching import Function, replace
from .futures import NUMBER
from .tracks import Orders, caller_outside
from .turns import POLL_INTERVAL, Choices, TurnTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Optional

    Source = Optional[tuple[str, int]]
    Call = tuple[Any, ...]  # call_soon_threadsafe, loop, handle

ORDER = "_reprokit_order"  # attribute of a loop


class LoopWakeUps:
    """The wake-ups of one loop: recorded as they come, or buffered in a replay until it is their turn."""

    def __init__(self, orders: Orders, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._lock = RLock()
        self._counts: dict[str, int] = {}  # of results, by the thread that submitted their tasks
        self._buffered: dict[str, deque[Call]] = {}
        self._next_name: str | None = None
        self._since = time.monotonic()
        self._timeout: TurnTimeout | None = None
        self._is_polling = False
        self.owner = get_ident()

    def wake(self, source: Source, loop: Any, original: Function, callback: Any, arguments: Any, keywords: Any) -> Any:
        """Let this thread wake the loop; source identifies the future whose result it delivers, if any."""
        with self._lock:
            if not self._choices.is_replay:
                self._choices.note(self._description(source))
                return original(loop, callback, *arguments, **keywords)
            events: Any = sys.modules["asyncio.events"]
            handle = events.Handle(callback, arguments, loop, **keywords)
            name = self._orders.actors.current.name if source is None else f"{source[0]} {source[1]}"
            self._buffered.setdefault(name, deque()).append((original, loop, handle))
            self._wake_due()
            if self._buffered and not self._is_polling:
                self._is_polling = True
                original(loop, self._flush_overdue, loop)
            return handle

    def _description(self, source: Source) -> str:
        """Return the recorded text of a wake-up: for a result the submitting thread and its relative number."""
        if source is None:
            return self._orders.actors.current.name
        count = self._counts[source[0]] = self._counts.get(source[0], 0) + 1
        return f"{source[0]} {source[1] - count}"

    def _read_next(self) -> str | None:
        """Return the name of the next recorded wake-up; None if it is unknown."""
        text = self._choices.next()
        submitter, _, number = (text or "").partition(" ")
        if not number.lstrip("-").isdecimal():
            return text
        count = self._counts[submitter] = self._counts.get(submitter, 0) + 1
        return f"{submitter} {int(number) + count}"

    def _wake_due(self) -> None:
        """Wake the loop by the buffered wake-ups whose turn it is."""
        while self._buffered:
            self._next_name = self._next_name or self._read_next()
            if self._next_name is None:
                self._flush()
            elif self._next_name in self._buffered:
                calls = self._buffered[self._next_name]
                _wake(*calls.popleft())
                if not calls:
                    del self._buffered[self._next_name]
                self._next_name = self._timeout = None
            else:
                break

    def _flush(self) -> None:
        while self._buffered:
            for call in self._buffered.popitem()[1]:
                _wake(*call)

    def _flush_overdue(self, loop: Any) -> None:
        """In the loop, periodically: give up if a wake-up has been buffered for too long."""
        with self._lock:
            self._timeout = self._timeout or TurnTimeout(self._orders, self._since, blocks=False)
            if not self._buffered:
                self._is_polling = False
            elif self._timeout.is_over(self._is_unsubmitted()):
                self._choices.give_up()
                self._next_name = self._timeout = None
                self._flush()
                self._is_polling = False
            else:
                loop.call_later(POLL_INTERVAL, self._flush_overdue, loop)

    def _is_unsubmitted(self) -> bool:
        """Return, in the loop, whether the next result is of a task that the loop itself has not submitted yet."""
        submitter, _, number = (self._next_name or "").partition(" ")
        actor = self._orders.actors.current
        return submitter == actor.name and number.isdecimal() and int(number) > actor.futures


def _wake(original: Function, loop: Any, handle: Any) -> None:
    if not loop.is_closed():
        original(loop, lambda: None if handle.cancelled() else handle._run())


class _OrderedCoroutines:
    """Iterates coroutines as tasks in the given order, where a set would iterate them by address."""

    def __init__(self, coroutines: Any, loop: Any) -> None:
        self._coroutines, self._loop = coroutines, loop

    def __iter__(self) -> Iterator[Any]:
        ensure_future = sys.modules["asyncio.tasks"].ensure_future
        return iter([ensure_future(coroutine, loop=self._loop) for coroutine in dict.fromkeys(self._coroutines)])


def _make_as_completed(original: Function) -> Function:
    def as_completed(fs: Any, *arguments: Any, **keywords: Any) -> Any:
        asyncio: Any = sys.modules["asyncio"]
        is_single = asyncio.isfuture(fs) or asyncio.iscoroutine(fs)  # asyncio raises an error for it
        return original(fs if is_single else _OrderedCoroutines(fs, keywords.get("loop")), *arguments, **keywords)

    return as_completed


def _source(argument: Any) -> Source:
    """Return the number of a future; of any other object no attribute is read, as that may raise an error."""
    module = sys.modules.get("concurrent.futures._base")
    return getattr(argument, NUMBER, None) if module and issubclass(type(argument), module.Future) else None


class LoopOrders:
    """Records or replays the order in which threads wake loops."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, base: Any) -> None:
        """Patch asyncio.base_events."""
        replace(base.BaseEventLoop, "__init__", self._make_init)
        replace(base.BaseEventLoop, "call_soon_threadsafe", self._make_call)
        replace(base.tasks, "as_completed", _make_as_completed)

    def _make_init(self, original: Function) -> Function:
        def initialize(loop: Any, *arguments: Any, **keywords: Any) -> None:
            original(loop, *arguments, **keywords)
            caller = caller_outside(("asyncio",))
            choices = None if caller is None else self._orders.choices("loop", caller, numbered=True)
            setattr(loop, ORDER, None if choices is None else LoopWakeUps(self._orders, choices))

        return initialize

    def _make_call(self, original: Function) -> Function:
        def call_soon_threadsafe(loop: Any, callback: Any, *arguments: Any, **keywords: Any) -> Any:
            order = getattr(loop, ORDER, None)
            # The loop's own thread delivers the results of tasks that ended before they were awaited.
            source = _source(arguments[-1]) if arguments else None
            is_own = source is None and get_ident() == (loop._thread_id or (order and order.owner))
            if order is None or is_own or loop.is_closed():
                return original(loop, callback, *arguments, **keywords)
            return order.wake(source, loop, original, callback, arguments, keywords)

        return call_soon_threadsafe
