"""Orders of asyncio: in which order other threads, ended programs and the loop's own timers wake a loop.

A thread wakes it with the result of a task or with a callback. They are passed on one by one, each once the loop has
executed all callbacks that the earlier ones led to: what it does then follows from their order. A loop that is never
done with its callbacks is waited for during MAX_ITERATIONS; what it sees before a wake-up does not repeat.

What a loop reads from sockets and pipes comes when it comes. From then on its timers may be others than those with the
same numbers in the recording. So an open loop holds wake-ups back for a short time in all, and then no more.
"""

from __future__ import annotations

import sys
import time
from _thread import RLock, get_ident
from collections import deque
from contextlib import contextmanager
from weakref import WeakValueDictionary

from ..core.patching import Function, replace
from .blocked_threads import native_id
from .callers import LIBRARIES, caller_outside, package_of
from .futures import NUMBER
from .tracks import Orders
from .turns import Choices, number_of
from .waits import LOOP_ORDER, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any, Optional

    Source = tuple[str, Optional[int]]  # a thread, or whose future or timer it is, and its number

TIMER = "timer"
PROGRAM = "program"
MAX_ITERATIONS = 16
OPEN_SECONDS = 0.5  # for which an open loop holds others up in all
OPEN_SHARE = 0.05  # and this part of the time that the recording took


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
        self._wait: Wait | None = None
        self._is_scheduled = self._is_polling = False
        self._iterations = 0  # of the loop since a wake-up waits for it
        self._timers: WeakValueDictionary[int, Any] = WeakValueDictionary()  # in a replay: those not due so far
        self._timer_count = self._program_count = 0
        self.is_open = False  # whether the loop has waited for a socket or pipe
        self.held = 0.0  # seconds for which wake-ups were held back, or its thread waited for a turn
        self.owner = get_ident()
        self.native_id, self.driver = 0, ""  # of the thread that executes the loop, and its name
        if choices.is_replay:
            orders.waits.watch(self)

    @property
    def waits_for_threads(self) -> bool:
        """Whether only other threads can wake this loop."""
        try:
            return not self.is_open and all(timer.cancelled() for timer in list(self._timers.values()))
        except RuntimeError:  # the loop has made a timer meanwhile
            return False

    @property
    def patience(self) -> float:
        """For how many seconds this loop, being open, may still hold others up."""
        return OPEN_SECONDS + OPEN_SHARE * self._orders.recorded_seconds - self.held

    @contextmanager
    def staying_closed(self) -> Iterator[None]:
        """Keep what the loop waits for meanwhile from making it an open one, as its order is given again."""
        was_open = self.is_open
        try:
            yield
        finally:
            self.is_open = was_open

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
        """Return whether a new time-out has expired already; in a replay, whether it had in the recording.

        Of an open loop that is not known, as this may be another time-out than the recorded one of its number.
        """
        number = self._timer_count + 1  # such a time-out gets no timer of the loop
        if self._expired.is_replay and not self.is_open:
            if self._next_expired <= self._last_expired:
                self._next_expired += number_of(self._expired.next()) or 0
            is_expired = number == self._next_expired
        elif is_expired and not self._expired.is_replay:
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
        self.native_id, self.driver = native_id(), self._orders.actors.current.name
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
                        self._poll_later(loop)
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
            if handle is None and not self._is_cancelled():
                break
            self._stop_waiting()
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

    def _poll_later(self, loop: Any) -> None:
        """In the loop: begin or go on to wait for the next wake-up, while others are buffered."""
        self._is_polling = True
        if self._wait is None:
            name, number = self._next or ("", None)
            kind = name if name in (TIMER, PROGRAM) else f"a result for {name}:"
            whom = name if number is None else f"{kind} {number}"
            self._wait = Wait(self._orders, self._choices.name, whom, self._since, is_blocking=False)
        self._call_at(loop, loop.time() + self._wait.interval, self._poll, loop)

    def _poll(self, loop: Any) -> None:
        """In the loop, periodically: give up if a wake-up has been buffered for too long."""
        with self._lock:
            self._is_polling = False
            for source, handles in list(self._buffered.items()):
                if all(handle.cancelled() for handle in handles):
                    del self._buffered[source]
            is_missing = bool(self._buffered) and self._next not in self._buffered
            if is_missing and self._wait is not None and self._is_over(self._wait, loop):
                self._stop_waiting()
                self._choices.give_up(is_known=self.is_open)
            self._schedule(loop, type(loop).call_soon)

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self.held += self._wait.seconds
        self._next = self._wait = None

    def _is_over(self, wait: Wait, loop: Any) -> bool:
        """Return whether to give up, as the next wake-up does not come, or not in time."""
        comes_in = self._comes_in(loop)
        if self.is_open:
            wait.is_external = True
            return wait.seconds + (comes_in or 0.0) > self.patience or wait.is_over()
        return self._is_in_vain(loop) or wait.is_over(comes_in=comes_in)

    def _comes_in(self, loop: Any) -> float | None:
        """Return in how many seconds the next wake-up comes; None if it is not known."""
        name, number = self._next or ("", None)
        handle = self._timers.get(number) if name == TIMER and number is not None else None
        return None if handle is None else max(0.0, handle.when() - loop.time())

    def _is_in_vain(self, loop: Any) -> bool:
        """Return, in a loop that only threads wake, whether the next wake-up cannot come.

        It is of a thread that has ended, or of a task or timer that the loop has not started so far.
        """
        name, number = self._next or ("", None)
        if number is None:
            return self._orders.actors.has_ended(name)
        actor = self._orders.actors.current
        started = self._timer_count if name == TIMER else actor.futures if name == actor.name else number
        return number > started and not loop._ready

    def _is_cancelled(self) -> bool:
        """Return whether the next wake-up is by a timer that was cancelled."""
        name, number = self._next or ("", None)
        if name != TIMER or number is None or number > self._timer_count:
            return False
        handle = self._timers.get(number)
        return handle is None or handle.cancelled()


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
        order = getattr(loop, LOOP_ORDER, None)
        if order is None:
            original(watcher, pid, callback, *arguments)
            return
        with order.staying_closed():
            original(watcher, pid, order.order_end(loop, callback), *arguments)

    return add_child_handler


def _make_add_descriptor(original: Function) -> Function:
    def add(loop: Any, descriptor: Any, *arguments: Any) -> Any:
        order = getattr(loop, LOOP_ORDER, None)
        if order is not None and not order.is_open and descriptor != loop._ssock.fileno():
            order.is_open = True
        return original(loop, descriptor, *arguments)

    return add


def _make_reschedule(original: Function) -> Function:
    def reschedule(timeout: Any, when: float | None) -> None:
        original(timeout, None)
        if when is not None:
            loop = sys.modules["asyncio.events"].get_running_loop()
            order, is_expired = getattr(loop, LOOP_ORDER, None), when <= loop.time()
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
            order = None if caller is None or package_of(caller) in LIBRARIES else self._wake_ups(caller)
            setattr(loop, LOOP_ORDER, order)

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
            order = getattr(loop, LOOP_ORDER, None)
            if order is not None:
                order.order_timer(handle, loop)
            return handle

        return call_at

    def watch_timeouts(self, timeouts: Any) -> None:
        """Patch asyncio.timeouts."""
        replace(timeouts.Timeout, "reschedule", _make_reschedule)

    def watch_sockets(self, selector_events: Any) -> None:
        """Patch asyncio.selector_events."""
        for name in ("_add_reader", "_add_writer"):
            replace(selector_events.BaseSelectorEventLoop, name, _make_add_descriptor)

    def watch_programs(self, unix_events: Any) -> None:
        """Patch the one of asyncio.unix_events' watchers that uses no thread for each program."""
        for name in ("PidfdChildWatcher", "_PidfdChildWatcher"):  # the latter from Python 3.14 on
            if name in vars(unix_events):
                replace(vars(unix_events)[name], "add_child_handler", _make_add_child)

    def _make_call(self, original: Function) -> Function:
        def call_soon_threadsafe(loop: Any, callback: Any, *arguments: Any, **keywords: Any) -> Any:
            order = getattr(loop, LOOP_ORDER, None)
            # The loop's own thread delivers the results of tasks that ended before they were awaited.
            source = _source(arguments[-1]) if arguments else None
            is_own = source is None and get_ident() == (loop._thread_id or (order and order.owner))
            if order is None or is_own or loop.is_closed():
                return original(loop, callback, *arguments, **keywords)
            handle = sys.modules["asyncio.events"].Handle(callback, arguments, loop, **keywords)
            return order.wake(source, loop, original, handle)

        return call_soon_threadsafe
