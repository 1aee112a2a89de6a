"""Replays recorded orders: turns for which threads wait, and answers that one thread is given one by one."""

from __future__ import annotations

import sys
import time
from _thread import RLock
from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .tracks import Orders

LOOK_INTERVAL = 0.0005  # seconds between two looks whether a recorded outcome has come
POLL_INTERVAL = 0.5  # seconds between two checks whether a waiting thread may go on waiting
GRACE = 2.0  # seconds to wait for a thread that has ended
TIMEOUT = 10.0  # seconds that an idle process waits for a turn, or as long as it has run until then
MAX_TIMEOUT = 600.0  # seconds: the upper limit of that
GIVE_UP_AFTER = 4  # timeouts, after which no thread waits any more
MAX_DIGITS = 10
IDLE_LOAD = 0.1  # of one processor, which loops use that only poll


class ReplayedTurns:
    """The recorded turns at one place, which threads take in the recorded order."""

    def __init__(self, orders: Orders, recorded: Sequence[int], condition: Any, is_optional: bool) -> None:
        self._orders = orders
        self._is_optional = is_optional
        self._recorded = recorded
        self._remaining = Counter(recorded)
        self.condition = condition  # its lock guards the object that the turns are about
        self._position = 0
        self._waiting = 0
        self._since = time.monotonic()
        self._has_arrived = False  # the actor whose turn it is has arrived
        self.exact = self.moved = 0

    @property
    def unused(self) -> int:
        """The number of recorded turns that were not taken, though they had to be."""
        return 0 if self._is_optional else len(self._recorded) - self._position

    def enter(self, actor: int, alternative: int = -1, *, may_wait: bool = False) -> int:
        """Wait for the turn of this thread's actor or of its alternative; the caller must not hold the lock.

        With may_wait, an actor without further recorded turns waits on: it was blocked there in the recording too.
        Returns the code of the actor whose turn it is, -1 if there are no further turns.
        """
        position, recorded = self._position, self._recorded
        if position < len(recorded) and recorded[position] != actor and recorded[position] != alternative:
            with self.condition:
                self._wait(actor, alternative, may_wait)
        self._has_arrived = True
        position, recorded = self._position, self._recorded
        return recorded[position] if position < len(recorded) else -1

    def _wait(self, actor: int, alternative: int, may_wait: bool) -> None:
        actors, timeout = self._orders.actors, TurnTimeout(self._orders, self._since)
        self._waiting += 1
        try:
            while self._position < len(self._recorded) and self._recorded[self._position] not in (actor, alternative):
                position = self._position
                if self._orders.timeouts >= GIVE_UP_AFTER:
                    self.give_up()
                    break
                self.condition.wait(POLL_INTERVAL)
                if position != self._position or position >= len(self._recorded):
                    timeout = TurnTimeout(self._orders, self._since)
                    continue
                has_ended = actors.has_ended(self._recorded[position])
                if self._has_arrived and not has_ended:  # it is blocked by something without turns, as in the recording
                    timeout = TurnTimeout(self._orders, self._since)
                elif timeout.is_over(has_ended, has_turns=not may_wait or self._remaining[actor] > 0):
                    self.give_up()
        finally:
            self._waiting -= 1

    def give_up(self) -> None:
        """Drop the remaining turns, as the actor of the next one does not arrive."""
        self._orders.timeouts += 1
        self.moved += len(self._recorded) - self._position
        self._recorded = self._recorded[: self._position]
        self.condition.notify_all()

    def leave(self) -> None:
        """Note that this thread has left; its turn stays open unless advance() was called."""
        self._has_arrived = False

    def advance(self, actor: int) -> None:
        """Note that an actor has taken its turn; the caller must hold the lock."""
        position = self._position
        self._has_arrived = False
        if position < len(self._recorded):
            if self._recorded[position] == actor:
                self._position = position + 1
                self._remaining[actor] -= 1
                self.exact += 1
            else:
                self.moved += 1
            if self._waiting:
                self.condition.notify_all()


class TurnTimeout:
    """Decides how long a thread waits for a turn that may never come; blocks: the thread can do nothing meanwhile."""

    def __init__(self, orders: Orders, since: float, *, blocks: bool = True) -> None:
        self._began = self._active_at = time.monotonic()
        self._processor_time = time.process_time()
        self._limit = MAX_TIMEOUT
        self._idle_limit = min(max(TIMEOUT, self._began - since), MAX_TIMEOUT)
        if orders.timeouts:  # the replay has diverged already
            self._limit = self._idle_limit = GRACE
        elif blocks and _drives_loop():  # the awaited actor may itself need this loop
            self._limit, self._idle_limit = TIMEOUT, GRACE

    def is_over(self, has_ended: bool = False, *, has_turns: bool = True) -> bool:
        """Return whether to stop waiting: the awaited thread has ended, the process is idle, or the limit is reached.

        Without has_turns an idle process does not count: such a thread was blocked in the recording too.
        """
        now, processor_time = time.monotonic(), time.process_time()
        if processor_time - self._processor_time > IDLE_LOAD * (now - self._active_at):
            self._active_at, self._processor_time = now, processor_time
        waited = now - self._began
        return waited > (GRACE if has_ended else self._limit) or (
            has_turns and now - self._active_at > self._idle_limit
        )


def _drives_loop() -> bool:
    """Return whether this thread executes a callback of asyncio."""
    events: Any = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


class RecordedAnswers:
    """The recorded answers to one thread, replayed one by one."""

    def __init__(self, answers: Sequence[str]) -> None:
        self._recorded = list(reversed(answers))
        self.exact = self.moved = 0
        self._is_last_known = False

    @property
    def unused(self) -> int:
        """The number of answers that were not asked for."""
        return len(self._recorded)

    def next(self) -> str | None:
        """Return the next answer; None if there is none."""
        self._is_last_known = bool(self._recorded)
        if not self._recorded:
            return None
        self.exact += 1
        return self._recorded.pop()

    def give_up(self, *, is_last_due: bool = False) -> None:
        """Drop the remaining answers, and count the last one as moved if it is due and does not occur."""
        if is_last_due and self._is_last_known:
            self.exact, self.moved, self._is_last_known = self.exact - 1, self.moved + 1, False
        self.moved += len(self._recorded)
        self._recorded = []


class Choices:
    """Records or replays the outcomes of one thread's calls at one place, as texts that repeat between runs."""

    def __init__(self, orders: Orders, name: str) -> None:
        self.is_replay = orders.is_replay
        self._orders = orders
        self._track = orders.track(name)
        self._answers = orders.answers(name) if self.is_replay else RecordedAnswers(())

    def note(self, text: str) -> None:
        """Record an outcome."""
        self._track.append(self._orders.actors.code(text))
        if not self._track.is_written:
            self._orders.attempt(self._track.begin)

    def next(self) -> str | None:
        """Return the next recorded outcome; None if it is unknown or the order is no longer enforced."""
        if self._orders.timeouts >= GIVE_UP_AFTER:
            self._answers.give_up()
        return self._answers.next()

    def as_recorded(self, value: int) -> int:
        """Return the recorded value of the same call; when recording, record this value and return it."""
        if not self.is_replay:
            self.note(str(value))
            return value
        text = self.next()
        return int(text) if text is not None and text.isdecimal() and len(text) < MAX_DIGITS else value

    def poll(self, check: Callable[[], bool]) -> bool:
        """Return whether check() holds; in a replay whether it did in the recording, once it does."""
        timeout: TurnTimeout | None = None
        text = self.next() if self.is_replay else None
        while text == "1" and not check():
            timeout = timeout or TurnTimeout(self._orders, self._orders.since)
            if timeout.is_over():
                self.give_up()
                text = None
            time.sleep(LOOK_INTERVAL)
        if text is not None:
            return text == "1"
        holds = check()
        if not self.is_replay:
            self.note(str(int(holds)))
        return holds

    def give_up(self, *, is_last_due: bool = True) -> None:
        """Stop replaying outcomes, as a recorded one does not occur: the last one, if it is due."""
        self._orders.timeouts += 1
        self._answers.give_up(is_last_due=is_last_due)


def number_of(text: str | None) -> int | None:
    """Return a recorded number, which may be negative; None for any other text."""
    return int(text) if text is not None and text[text.startswith("-") :].isdecimal() else None


class ReorderBuffer:
    """Passes numbered results on: as they come when recording, in the recorded order in a replay.

    Each number is recorded as its difference from the count of results before it.
    """

    def __init__(self, orders: Orders, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._lock = RLock()
        self._count = 0  # of results that were passed on
        self._buffered: dict[int, Any] = {}
        self._next_number: int | None = None
        self._since = time.monotonic()
        self._timeout: TurnTimeout | None = None

    def put(self, number: int, result: Any, pass_on: Callable[[int, Any], object]) -> None:
        """Take a result, and pass on those whose turn it is."""
        with self._lock:
            if not self._choices.is_replay:
                self._choices.note(str(number - self._count))
                self._count += 1
                pass_on(number, result)
                return
            self._buffered[number] = result
            while self._buffered:
                if self._next_number is None:
                    relative = number_of(self._choices.next())
                    self._next_number = min(self._buffered) if relative is None else self._count + relative
                if self._next_number not in self._buffered:
                    break
                pass_on(self._next_number, self._buffered.pop(self._next_number))
                self._count, self._next_number, self._timeout = self._count + 1, None, None

    def flush(self, pass_on: Callable[[int, Any], object]) -> None:
        """Pass on all buffered results, and stop enforcing the order."""
        with self._lock:
            self._choices.give_up(is_last_due=self._next_number is not None)
            self._next_number = None
            while self._buffered:
                pass_on(*self._buffered.popitem())

    def flush_overdue(self, pass_on: Callable[[int, Any], object]) -> None:
        """Called while a thread waits for a result: flush if results have been buffered for too long."""
        with self._lock:
            if self._buffered:
                self._timeout = self._timeout or TurnTimeout(self._orders, self._since)
                if self._timeout.is_over():
                    self.flush(pass_on)
