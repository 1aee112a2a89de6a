"""Orders of asyncio: in which order other threads, ended programs and the loop's own timers wake a loop.

A thread wakes it with the result of a task or with a callback. They are passed on one by one, each once the loop has
executed all callbacks that the earlier ones led to: what it does then follows from their order. A loop that is never
done with its callbacks is waited for during MAX_ITERATIONS; what it sees before a wake-up does not repeat.
"""

from __future__ import annotations

import sys
import time
from _thread import RLock, get_ident
from collections import deque
from weakref import WeakValueDictionary

from ..core.patching import Function, replace
from .futures import NUMBER
from .tracks import Orders, caller_outside
from .turns import POLL_INTERVAL, Choices, TurnTimeout, number_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any, Optional

    Source = tuple[str, Optional[int]]  # a thread, or whose future or timer it is, and its number

ORDER = "_reprokit_order"  # attribute of a loop
TIMER = "timer"
PROGRAM = "program"
CANCELLED, PENDING = "cancelled", "pending"  # states of a timer that is not due
MAX_ITERATIONS = 16


class LoopWakeUps:
    """The wake-ups of one loop: passed on as they come when recording, in the recorded order in a replay."""

    def __init__(self, orders: Orders, choices: Choices, expired: Choices, call_at: Function) -> None:
        self._orders = orders
        self._choices = choices
        self._expired = expired  # numbers of time-outs that had expired when they began, each less the one before
        self._last_expired = self._next_expired = 0
        self._call_at = call_at  # as it was before it was patched
        self._lock = RLock()
        self._counts: dict[str, int] = {}  # of results by the thread that submitted their tasks; the last timer
        self._arrived: deque[tuple[Source, Any]] = deque()  # handles, when recording
        self._buffered: dict[Source, deque[Any]] = {}  # handles, in a replay
        self._next: Source | None = None
        self._since = time.monotonic()
        self._timeout: TurnTimeout | None = None
        self._is_scheduled = self._is_polling = False
        self._iterations = 0  # of the loop since a wake-up waits for it
        self._timers: WeakValueDictionary[int, Any] = WeakValueDictionary()  # in a replay: those not due so far
        self._timer_count = self._program_count = 0
        self.owner = get_ident()

    def wake(self, source: Source | None, loop: Any, call_soon: Function, handle: Any) -> Any:
        """Let this thread wake the loop; source identifies the future whose result it delivers, if any."""
        with self._lock:
            self._add(source or (self._orders.actors.current.name, None), handle)
            self._schedule(loop, call_soon)
        return handle

    def order_timer(self, handle: Any, loop: Any) -> None:
        """Give a new timer its turn once it is due."""
        self._timer_count = number = self._timer_count + 1
        if self._choices.is_replay:
            self._timers[number] = handle
        callback, arguments = handle._callback, handle._args

        def take_turn() -> None:
            handle._callback, handle._args = callback, arguments
            with self._lock:
                if self._choices.is_replay:
                    self._timers.pop(number, None)
                is_alone = not (self._is_scheduled or loop._ready or self._buffered)
                self._add((TIMER, number), handle)
                is_next = is_alone and self._take() is handle
                if not (is_next or self._is_scheduled):
                    self._schedule(loop, type(loop).call_soon)
            if is_next:
                callback(*arguments)

        handle._callback, handle._args = take_turn, ()

    def order_end(self, loop: Any, callback: Function) -> Function:
        """Return a callback of the end of a new program, which waits for its turn."""
        self._program_count = number = self._program_count + 1

        def take_turn(*arguments: Any) -> None:
            handle = sys.modules["asyncio.events"].Handle(callback, arguments, loop)
            self.wake((PROGRAM, number), loop, type(loop).call_soon, handle)

        return take_turn

    def begins_expired(self, is_expired: bool) -> bool:
        """Return whether a new time-out has expired already; in a replay, whether it had in the recording."""
        number = self._timer_count + 1  # such a time-out gets no timer of the loop
        if self._expired.is_replay:
            if self._next_expired <= self._last_expired:
                self._next_expired += number_of(self._expired.next()) or 0
            is_expired = number == self._next_expired
        elif is_expired:
            self._expired.note(str(number - self._last_expired))
        if is_expired:
            self._timer_count = self._last_expired = number
        return is_expired

    def _add(self, source: Source, handle: Any) -> None:
        if self._choices.is_replay:
            self._buffered.setdefault(source, deque()).append(handle)
        else:
            self._arrived.append((source, handle))

    def _schedule(self, loop: Any, call_soon: Function) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            call_soon(loop, self._pass_on, loop)

    def _pass_on(self, loop: Any) -> None:
        """In the loop: execute the wake-ups whose turn it is, each when nothing else is left to execute."""
        ready, call_soon = loop._ready, type(loop).call_soon
        with self._lock:
            self._is_scheduled = False
            self._iterations = self._iterations + 1 if ready and self._iterations < MAX_ITERATIONS else 0
            if self._iterations:
                self._schedule(loop, call_soon)
                return
        while True:
            with self._lock:
                handle = self._take()
                if self._arrived or (handle is not None and self._buffered):
                    self._schedule(loop, call_soon)  # also for a loop that the callback nests in this one
                elif handle is None:
                    if self._buffered and not self._is_polling:
                        self._is_polling = True
                        self._call_at(loop, loop.time() + POLL_INTERVAL, self._poll, loop)
                    return
            handle._run()
            if len(ready) > self._is_scheduled:
                return

    def _take(self) -> Any:
        """Return the handle whose turn it is, and note the turn; None if there is none so far."""
        while self._arrived:
            source, handle = self._arrived.popleft()
            if not handle.cancelled():
                self._choices.note(self._description(source))
                return handle
        while self._buffered:
            self._next = self._next or self._read_next()
            source = self._next or next(iter(self._buffered))
            handles = self._buffered.get(source)
            handle = handles.popleft() if handles else None
            if handles is not None and not handles:
                del self._buffered[source]
            if handle is not None and handle.cancelled():
                continue
            if handle is None and self._timer_state() is not CANCELLED:
                break
            self._next = self._timeout = None
            if handle is not None:
                return handle
        return None

    def _description(self, source: Source) -> str:
        """Return the recorded text of a wake-up; numbers are relative: to the last timer, to the count of results."""
        name, number = source
        if number is None:
            return name
        last = self._counts.get(name, 0)
        self._counts[name] = number if name == TIMER else last + 1
        return f"{name} {number - last}"

    def _read_next(self) -> Source | None:
        """Return the next recorded wake-up; None if it is unknown."""
        text = self._choices.next()
        name, _, digits = (text or "").partition(" ")
        number = number_of(digits)
        if text is None or number is None:
            return None if text is None else (text, None)
        last = self._counts.get(name, 0)
        self._counts[name] = last + (number if name == TIMER else 1)
        return name, last + number

    def _poll(self, loop: Any) -> None:
        """In the loop, periodically: give up if a wake-up has been buffered for too long."""
        with self._lock:
            self._is_polling = False
            for source, handles in list(self._buffered.items()):
                if all(handle.cancelled() for handle in handles):
                    del self._buffered[source]
            is_pending = self._timer_state() is PENDING
            if is_pending or self._timeout is None:
                self._timeout = TurnTimeout(self._orders, self._since, blocks=False)
            if self._buffered and not is_pending and self._timeout.is_over(self._is_unstarted()):
                self._choices.give_up(is_last_due=self._next is not None)
                self._next = self._timeout = None
            self._schedule(loop, type(loop).call_soon)

    def _timer_state(self) -> str:
        """Return what is known of the timer whose turn is next; "" if it is not created so far, or no timer."""
        name, number = self._next or ("", None)
        if name != TIMER or number is None or number > self._timer_count:
            return ""
        handle = self._timers.get(number)
        return CANCELLED if handle is None or handle.cancelled() else PENDING

    def _is_unstarted(self) -> bool:
        """Return, in the loop, whether the next wake-up is by a task or timer that the loop has not started so far."""
        name, number = self._next or ("", None)
        actor = self._orders.actors.current
        return name == TIMER or (name == actor.name and number is not None and number > actor.futures)


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


def _make_add_child(original: Function) -> Function:
    def add_child_handler(watcher: Any, pid: int, callback: Function, *arguments: Any) -> None:
        loop = sys.modules["asyncio.events"].get_running_loop()
        order = getattr(loop, ORDER, None)
        original(watcher, pid, callback if order is None else order.order_end(loop, callback), *arguments)

    return add_child_handler


def _make_reschedule(original: Function) -> Function:
    def reschedule(timeout: Any, when: float | None) -> None:
        original(timeout, None)
        if when is not None:
            loop = sys.modules["asyncio.events"].get_running_loop()
            order, is_expired = getattr(loop, ORDER, None), when <= loop.time()
            timeout._when = when
            if is_expired if order is None else order.begins_expired(is_expired):
                timeout._timeout_handler = loop.call_soon(timeout._on_timeout)
            else:
                timeout._timeout_handler = loop.call_at(when, timeout._on_timeout)

    return reschedule


def _source(argument: Any) -> Source | None:
    """Return the number of a future; of any other object no attribute is read, as that may raise an error."""
    module = sys.modules.get("concurrent.futures._base")
    return getattr(argument, NUMBER, None) if module and issubclass(type(argument), module.Future) else None


class LoopOrders:
    """Records or replays the order in which threads and timers wake loops."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def watch(self, base: Any) -> None:
        """Patch asyncio.base_events."""
        self._call_at = base.BaseEventLoop.call_at
        replace(base.BaseEventLoop, "__init__", self._make_init)
        replace(base.BaseEventLoop, "call_soon_threadsafe", self._make_call)
        replace(base.BaseEventLoop, "call_at", self._make_call_at)
        replace(base.tasks, "as_completed", _make_as_completed)

    def _make_init(self, original: Function) -> Function:
        def initialize(loop: Any, *arguments: Any, **keywords: Any) -> None:
            original(loop, *arguments, **keywords)
            caller = caller_outside(("asyncio",))
            setattr(loop, ORDER, None if caller is None else self._wake_ups(caller))

        return initialize

    def _wake_ups(self, caller: FrameType) -> LoopWakeUps | None:
        choices = self._orders.choices("loop", caller, numbered=True)
        expired = self._orders.choices("expired", caller, numbered=True)
        if choices is None or expired is None:
            return None
        return LoopWakeUps(self._orders, choices, expired, self._call_at)

    def _make_call_at(self, original: Function) -> Function:
        def call_at(loop: Any, *arguments: Any, **keywords: Any) -> Any:
            handle = original(loop, *arguments, **keywords)
            order = getattr(loop, ORDER, None)
            if order is not None:
                order.order_timer(handle, loop)
            return handle

        return call_at

    def watch_timeouts(self, timeouts: Any) -> None:
        """Patch asyncio.timeouts."""
        replace(timeouts.Timeout, "reschedule", _make_reschedule)

    def watch_programs(self, unix_events: Any) -> None:
        """Patch the one of asyncio.unix_events' watchers that uses no thread for each program."""
        for name in ("PidfdChildWatcher", "_PidfdChildWatcher"):  # the latter from Python 3.14 on
            if name in vars(unix_events):
                replace(vars(unix_events)[name], "add_child_handler", _make_add_child)

    def _make_call(self, original: Function) -> Function:
        def call_soon_threadsafe(loop: Any, callback: Any, *arguments: Any, **keywords: Any) -> Any:
            order = getattr(loop, ORDER, None)
            # The loop's own thread delivers the results of tasks that ended before they were awaited.
            source = _source(arguments[-1]) if arguments else None
            is_own = source is None and get_ident() == (loop._thread_id or (order and order.owner))
            if order is None or is_own or loop.is_closed():
                return original(loop, callback, *arguments, **keywords)
            handle = sys.modules["asyncio.events"].Handle(callback, arguments, loop, **keywords)
            return order.wake(source, loop, original, handle)

        return call_soon_threadsafe
