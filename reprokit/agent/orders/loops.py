"""Orders of asyncio: in which order other threads wake a loop, be it with the result of a task or with an item.

What a loop does between two wake-ups follows from its own callbacks. Which of these it has run by the time of a wake-up
does not repeat: only the order of wake-ups is given again.
"""

from __future__ import annotations

import sys
import time
from _thread import RLock, get_ident
from collections import deque

from ..core.patching import Function, replace
from .futures import NUMBER
from .tracks import Orders, caller_outside
from .turns import PAUSE, Choices, Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Optional

    Source = Optional[tuple[str, int]]
    Call = tuple[Any, ...]  # original, loop, callback, arguments

ORDER = "_reprokit_order"  # attribute of a loop


class WakeUps:
    """The wake-ups of one loop: noted as they come, or held back until it is their turn."""

    def __init__(self, orders: Orders, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._lock = RLock()
        self._counts: dict[str, int] = {}  # of results, by the thread that asked for them
        self._early: dict[str, deque[Call]] = {}
        self._wanted: str | None = None
        self._since = time.monotonic()
        self._patience: Patience | None = None
        self._is_watched = False
        self.owner = get_ident()

    def come(self, source: Source, loop: Any, original: Function, callback: Any, arguments: Any, keywords: Any) -> Any:
        """Have a thread wake the loop; the source is the future, if any, whose result it brings."""
        with self._lock:
            if not self._choices.is_replay:
                self._choices.note(self._noted(source))
                return original(loop, callback, *arguments, **keywords)
            events: Any = sys.modules["asyncio.events"]
            handle = events.Handle(callback, arguments, loop, **keywords)
            name = self._orders.actors.mine.name if source is None else f"{source[0]} {source[1]}"
            self._early.setdefault(name, deque()).append((original, loop, handle))
            self._give()
            if self._early and not self._is_watched:
                self._is_watched = True
                original(loop, self._watch, loop)
            return handle

    def _noted(self, source: Source) -> str:
        """Return the text of a wake-up: of a result the asking thread, and its number less those before it."""
        if source is None:
            return self._orders.actors.mine.name
        count = self._counts[source[0]] = self._counts.get(source[0], 0) + 1
        return f"{source[0]} {source[1] - count}"

    def _next(self) -> str | None:
        """Return the name of the wake-up that is next; None where nothing is known of it."""
        text = self._choices.next()
        asked_by, _, number = (text or "").partition(" ")
        if not number.lstrip("-").isdecimal():
            return text
        count = self._counts[asked_by] = self._counts.get(asked_by, 0) + 1
        return f"{asked_by} {int(number) + count}"

    def _give(self) -> None:
        """Wake the loop by those whose turn it is."""
        while self._early:
            self._wanted = self._wanted or self._next()
            if self._wanted is None:
                self._give_all()
            elif self._wanted in self._early:
                calls = self._early[self._wanted]
                _wake(*calls.popleft())
                if not calls:
                    del self._early[self._wanted]
                self._wanted = self._patience = None
            else:
                break

    def _give_all(self) -> None:
        while self._early:
            for call in self._early.popitem()[1]:
                _wake(*call)

    def _watch(self, loop: Any) -> None:
        """In the loop, from time to time: give up where something is held back for too long."""
        with self._lock:
            self._patience = self._patience or Patience(self._orders, self._since, blocks=False)
            if not self._early:
                self._is_watched = False
            elif self._patience.is_over(self._is_unasked()):
                self._choices.give_up()
                self._wanted = self._patience = None
                self._give_all()
                self._is_watched = False
            else:
                loop.call_later(PAUSE, self._watch, loop)

    def _is_unasked(self) -> bool:
        """Return, in the loop, whether a result is waited for that the loop itself has not asked for yet."""
        asked_by, _, number = (self._wanted or "").partition(" ")
        mine = self._orders.actors.mine
        return asked_by == mine.name and number.isdecimal() and int(number) > mine.futures


def _wake(original: Function, loop: Any, handle: Any) -> None:
    if not loop.is_closed():
        original(loop, lambda: None if handle.cancelled() else handle._run())


class _AsGiven:
    """Coroutines of which tasks are made in the order given, where a set of them would have that of addresses."""

    def __init__(self, coroutines: Any, loop: Any) -> None:
        self._coroutines, self._loop = coroutines, loop

    def __iter__(self) -> Iterator[Any]:
        ensure_future = sys.modules["asyncio.tasks"].ensure_future
        return iter([ensure_future(one, loop=self._loop) for one in dict.fromkeys(self._coroutines)])


def _make_as_completed(original: Function) -> Function:
    def as_completed(fs: Any, *arguments: Any, **keywords: Any) -> Any:
        asyncio: Any = sys.modules["asyncio"]
        is_one = asyncio.isfuture(fs) or asyncio.iscoroutine(fs)  # which is refused
        return original(fs if is_one else _AsGiven(fs, keywords.get("loop")), *arguments, **keywords)

    return as_completed


def _source(brought: Any) -> Source:
    """Return the number of a future; what else a loop is given may fail at any name that it is asked for."""
    module = sys.modules.get("concurrent.futures._base")
    return getattr(brought, NUMBER, None) if module and issubclass(type(brought), module.Future) else None


class LoopOrders:
    """Records in which order threads wake loops, or gives it again."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, base: Any) -> None:
        """Watch asyncio.base_events."""
        replace(base.BaseEventLoop, "__init__", self._make_init)
        replace(base.BaseEventLoop, "call_soon_threadsafe", self._make_call)
        replace(base.tasks, "as_completed", _make_as_completed)

    def _make_init(self, original: Function) -> Function:
        def initialize(loop: Any, *arguments: Any, **keywords: Any) -> None:
            original(loop, *arguments, **keywords)
            caller = caller_outside(("asyncio",))
            choices = None if caller is None else self._orders.choices("loop", caller, numbered=True)
            setattr(loop, ORDER, None if choices is None else WakeUps(self._orders, choices))

        return initialize

    def _make_call(self, original: Function) -> Function:
        def call_soon_threadsafe(loop: Any, callback: Any, *arguments: Any, **keywords: Any) -> Any:
            order = getattr(loop, ORDER, None)
            # The thread of the loop itself brings the results of tasks that ended before they were waited for.
            source = _source(arguments[-1]) if arguments else None
            is_own = source is None and get_ident() == (loop._thread_id or (order and order.owner))
            if order is None or is_own or loop.is_closed():
                return original(loop, callback, *arguments, **keywords)
            return order.come(source, loop, original, callback, arguments, keywords)

        return call_soon_threadsafe
