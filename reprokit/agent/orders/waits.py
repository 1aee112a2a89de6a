"""Waits of a replay for what came first in the recording: who waits for whom, and when that is over.

A wait is over at once if it cannot come true: the awaited thread has ended, or itself waits for this one, or the
process is at rest, as only those who wait could go on. Else it is over after a time. Each wait that was given up
shortens all later ones, and together they are bounded by the time that the recording took.
"""

from __future__ import annotations

import sys
import time
import weakref
from _thread import get_ident

from ..core.user_frames import users_frames
from .blocked_threads import at_rest, native_id
from .callers import caller_outside, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, Protocol

    from .actors import Actors

    class WatchedLoop(Protocol):
        """A loop of asyncio, whose thread may wait for others."""

        is_open: bool
        driver: str
        native_id: int
        held: float

        @property
        def waits_for_threads(self) -> bool: ...
        @property
        def patience(self) -> float: ...

    class WaitingProcess(Protocol):
        """What a wait needs to know of its process: tracks.Orders has it."""

        actors: Actors
        since: float
        waits: Waits
        warn: Callable[..., None]

        @property
        def identity(self) -> str: ...
        @property
        def recorded_seconds(self) -> float: ...
        def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


POLL_INTERVAL = 0.5  # seconds between two checks whether a waiting thread may go on waiting
FIRST_INTERVAL = 0.01  # seconds: the first such checks
GRACE = 2.0  # seconds that a process waits that has given up before
TIMEOUT = 10.0  # seconds that an idle process waits for a turn, or as long as it has run until then
MAX_TIMEOUT = 600.0  # seconds: the upper limit of that
SLOWDOWN = 10  # how many times as long as the recording a busy process waits
GIVE_UP_AFTER = 4  # waits that were given up, after which no thread waits any more
IDLE_SHARE = 2  # times as long as the recording an idle process waits in all
IDLE_LOAD = 0.1  # of one processor, which loops use that only poll
LOOP_ORDER = "_reprokit_order"  # attribute of a loop of asyncio
MAX_SAID = 20  # waits of a process that are reported


class Waits:
    """The waits of this process."""

    def __init__(self, orders: WaitingProcess) -> None:
        self._orders, self.attempt = orders, orders.attempt
        self.given_up = 0
        self._loops: list[weakref.ref[WatchedLoop]] = []
        self._blocked: dict[int, Wait] = {}  # by the identifier of the thread that waits
        self._said: set[tuple[str, str]] = set()
        self._idle = 0.0  # seconds during which somebody waited and the process was idle
        self._sampled_at, self._processor_time = time.monotonic(), time.process_time()
        self._runs: dict[int, bytes] | None = None  # of threads, when the process was last at rest

    @property
    def recorded_seconds(self) -> float:
        """The time that the recording took."""
        return self._orders.recorded_seconds

    @property
    def are_over(self) -> bool:
        """Whether nobody waits any more, as too much has come in another order or too late."""
        longest = TIMEOUT + IDLE_SHARE * self.recorded_seconds
        return self.given_up >= GIVE_UP_AFTER or self._idle > longest

    @property
    def patience(self) -> float:
        """The seconds that an idle process waits."""
        return 0.0 if self.are_over else GRACE if self.given_up else TIMEOUT

    def until(
        self, attempt: Callable[[float], Any], track: str, whom: str, *, least: float = 0.0, **options: Any
    ) -> Any:
        """Call attempt(SECONDS), which waits for that long, until it returns what is true or the wait is over.

        The wait takes at least ``least`` seconds: those that the script itself would wait.
        """
        began = time.monotonic()
        with Wait(self._orders, track, whom, **options) as wait:
            while True:
                result = attempt(wait.interval)
                if result or (wait.is_over() and time.monotonic() - began >= least):
                    return result

    def watch(self, loop: WatchedLoop) -> None:
        """Know a loop, whose thread may wait for others."""
        self._loops = [weakref.ref(living) for living in [*self._living_loops(), loop]]

    def _living_loops(self) -> list[WatchedLoop]:
        return [loop for loop in [reference() for reference in self._loops] if loop is not None]

    def open_loop_of(self, drivers: Collection[str]) -> WatchedLoop | None:
        """Return the open loop that one of these threads executes: what it does depends on what it reads."""
        return next((loop for loop in self._living_loops() if loop.is_open and loop.driver in drivers), None)

    def go_on(self) -> None:
        """Note that somebody has had a turn, for which others may have waited."""
        self._runs = None

    def begin(self, wait: Wait) -> Wait | None:
        """Note that this thread is blocked by a wait; return the one by which it was blocked already."""
        if not self._blocked:
            self._sampled_at, self._processor_time = time.monotonic(), time.process_time()
        outer = self._blocked.get(get_ident())
        self._blocked[get_ident()] = wait
        return outer

    def end(self, outer: Wait | None) -> None:
        """Note that this thread is no longer blocked, but for an outer wait."""
        self.go_on()
        if outer is None:
            self._blocked.pop(get_ident(), None)
        else:
            self._blocked[get_ident()] = outer

    def give_up(self) -> None:
        """Note that a wait was given up."""
        self.given_up += 1
        self.go_on()

    def sample(self, now: float, processor_time: float) -> None:
        """Count the time since the last sample if the process was idle then."""
        elapsed = now - self._sampled_at
        if elapsed < POLL_INTERVAL / 2:
            return
        if elapsed <= 2 * POLL_INTERVAL and processor_time - self._processor_time <= IDLE_LOAD * elapsed:
            self._idle += elapsed
        self._sampled_at, self._processor_time = now, processor_time

    def are_circular(self, wait: Wait) -> bool:
        """Return whether the awaited thread waits, perhaps through others, for the turn of the one that waits.

        A thread that was not created so far cannot come if the one that creates it waits.
        """
        whom_by_waiter = {each.waiter: each.whom for each in list(self._blocked.values()) if each.is_current()}
        acting_for = self._orders.actors.acting_for
        acting = acting_for(wait.whom)
        for _ in range(len(whom_by_waiter) + 1):
            if acting == wait.waiter:
                return True
            acting = acting_for(whom_by_waiter.get(acting, ""))
        return False

    def are_last(self) -> bool:
        """Return whether the process is at rest, now as at the look before: only those who wait could go on."""
        waits = list(self._blocked.values())
        if not all(each.is_current() for each in waits):
            return False
        held = {each.native_id for each in waits if not each.is_external}
        loops = {loop.native_id for loop in self._living_loops() if loop.waits_for_threads}
        before, self._runs = self._runs, at_rest(native_id(), held, loops)
        return before is not None and before == self._runs

    def say(self, wait: Wait) -> None:
        """Report a long wait, once for each thread at each place."""
        key = (wait.waiter, wait.track)
        if key in self._said or len(self._said) >= MAX_SAID:
            return
        self._said.add(key)
        frame = next(users_frames(sys._getframe(1)), None) or caller_outside(())
        where = "" if frame is None or not wait.is_blocking else f" at {place(frame)}"
        text = f"thread {wait.waiter} of process {self._orders.identity} has waited {TIMEOUT:.0f} s{where}"
        self._orders.warn(f"{text} for {wait.whom}, as recorded (order {wait.track})", "order-waited", aloud=True)


class Wait:
    """One wait of this thread, or of a loop that goes on meanwhile."""

    def __init__(
        self,
        orders: WaitingProcess,
        track: str,
        whom: str,
        since: float | None = None,
        *,
        is_current: Callable[[], bool] = lambda: True,
        is_blocking: bool = True,
        is_external: bool = False,
    ) -> None:
        self.track, self.is_blocking = track, is_blocking
        self.whom = whom  # a thread, or what else is waited for
        self.is_current = is_current  # whether it goes on: not if its thread is only about to notice the end
        self.is_external = is_external  # it may come true by what happens outside of this process
        self.waiter, self.native_id = orders.actors.current.name, native_id()
        self._waits = waits = orders.waits
        self._outer: Wait | None = None
        self._first_began = self._began = self._active_at = now = time.monotonic()
        self._look_at = now + FIRST_INTERVAL
        self._processor_time = time.process_time()
        self._idle_limit = min(max(TIMEOUT, now - (orders.since if since is None else since)), MAX_TIMEOUT)
        self._limit = min(MAX_TIMEOUT, TIMEOUT + SLOWDOWN * waits.recorded_seconds)
        loop = _driven_loop() if is_blocking else None  # the awaited thread may itself need it
        if waits.given_up:  # the replay has diverged already
            self._limit = self._idle_limit = GRACE
        elif loop is not None:
            self._limit, self._idle_limit = TIMEOUT, GRACE
        self._open_loop = waits.open_loop_of({self.waiter, orders.actors.acting_for(whom)}) if is_blocking else None
        if self._open_loop is not None:
            self._limit = self._idle_limit = min(self._idle_limit, self._open_loop.patience)

    def __enter__(self) -> Wait:
        self._outer = self._waits.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._waits.end(self._outer)
        if self._open_loop is not None:
            self._open_loop.held += time.monotonic() - self._first_began

    def restart(self) -> None:
        """Begin again, as such a wait is as in the recording."""
        self._began = self._active_at = time.monotonic()

    def allow(self, seconds: float) -> None:
        """Let the wait take that long, unless the replay has diverged already."""
        if not self._waits.given_up:
            self._limit, self._idle_limit = max(self._limit, seconds), max(self._idle_limit, seconds)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._began

    @property
    def interval(self) -> float:
        """The seconds until the next check."""
        return min(POLL_INTERVAL, max(FIRST_INTERVAL, (time.monotonic() - self._first_began) / 2))

    def is_over(self, *, has_turns: bool = True, comes_in: float | None = None) -> bool:
        """Return whether to stop waiting: nobody waits any more, it is in vain, or it takes too long.

        Without has_turns only the time counts: such a thread was blocked in the recording too. What is known to come in
        some seconds is waited for if the recording may have waited that long.
        """
        now, processor_time = time.monotonic(), time.process_time()
        if processor_time - self._processor_time > IDLE_LOAD * (now - self._active_at):
            self._active_at, self._processor_time = now, processor_time
        if self._waits.are_over or not has_turns:
            return self._waits.are_over or self.seconds > self._limit
        self._waits.sample(now, processor_time)
        if self.seconds > TIMEOUT:
            self._waits.say(self)
        if comes_in is not None:
            return comes_in > max(TIMEOUT, self._waits.recorded_seconds)
        is_too_long = self.seconds > self._limit or now - self._active_at > self._idle_limit
        return is_too_long or self.is_in_vain()

    def is_in_vain(self) -> bool:
        """Return whether the wait cannot come true, as far as threads of this process decide it."""
        if self.is_external or not self.is_time_to_look():
            return False
        return bool(self._waits.attempt(self._waits.are_circular, self) or self._waits.attempt(self._waits.are_last))

    def is_time_to_look(self) -> bool:
        """Return whether to look again at those who are waited for, which takes longer than a check of the time."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + self.interval
        return True


def _driven_loop() -> WatchedLoop | None:
    """Return what is known of the loop of asyncio of which this thread executes a callback."""
    events: Any = sys.modules.get("asyncio.events")
    loop = None if events is None else events._get_running_loop()
    return getattr(loop, LOOP_ORDER, None)
