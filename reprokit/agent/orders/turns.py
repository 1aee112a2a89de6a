"""Replays recorded orders: turns for which threads wait, and answers that one thread is given one by one."""

from __future__ import annotations

import time
from _thread import RLock
from collections import Counter

from .waits import Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from .waits import WaitingProcess

    class OpenTrack(Protocol):
        """A track that turns are appended to, such as tracks.Track."""

        is_written: bool

        def append(self, actor: int) -> None: ...
        def begin(self) -> None: ...

    class RecordingProcess(WaitingProcess, Protocol):
        """What the choices of a thread need of its process: tracks.Orders has it."""

        @property
        def is_replay(self) -> bool: ...
        def track(self, name: str) -> OpenTrack: ...
        def answers(self, name: str) -> RecordedAnswers: ...


LOOK_INTERVAL = 0.0005  # seconds between two looks whether a recorded outcome has come
MAX_DIGITS = 10


class ReplayedTurns:
    """The recorded turns at one place, which threads take in the recorded order."""

    def __init__(
        self,
        orders: WaitingProcess,
        name: str,
        recorded: Sequence[int],
        condition: Any,
        is_optional: bool,
        is_mixed: bool,
    ) -> None:
        self._orders, self._name = orders, name
        self._is_optional = is_optional
        self._is_mixed = is_mixed  # whether one actor may be blocked by what another one has yet to do here
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
        self._waiting += 1
        try:
            while not self.is_turn_of(actor, alternative):
                self._wait_for_other(has_turns=not may_wait or self._remaining[actor] > 0)
        finally:
            self._waiting -= 1

    def is_turn_of(self, actor: int, alternative: int = -1) -> bool:
        """Return whether one of these actors has the next turn, or nobody has."""
        return self._position >= len(self._recorded) or self._recorded[self._position] in (actor, alternative)

    def _wait_for_other(self, has_turns: bool) -> None:
        """Wait until the awaited actor has had its turn, or give up."""
        actors, position = self._orders.actors, self._position
        awaited = actors.thread_of(self._recorded[position])

        def is_current() -> bool:
            return position == self._position < len(self._recorded)

        with Wait(self._orders, self._name, awaited, self._since, is_current=is_current) as wait:
            while is_current():
                if actors.has_ended(awaited) or self._is_over(wait, has_turns):
                    self.give_up()
                else:
                    self.condition.wait(wait.interval)

    def _is_over(self, wait: Wait, has_turns: bool) -> bool:
        if not self._has_arrived:
            return wait.is_over(has_turns=has_turns)
        wait.restart()  # the awaited actor is blocked by something without turns, as in the recording
        return self._is_mixed and wait.is_in_vain()

    def give_up(self) -> None:
        """Drop the remaining turns, as the actor of the next one does not arrive; the caller must hold the lock."""
        self._orders.waits.give_up()
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
                self._orders.waits.go_on()
                self.condition.notify_all()


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

    def peek(self) -> str | None:
        """Return what the next answer is; None if there is none."""
        return self._recorded[-1] if self._recorded else None

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

    def __init__(self, orders: RecordingProcess, name: str) -> None:
        self.is_replay = orders.is_replay
        self.name = name
        self._orders = orders
        self._track = orders.track(name)
        self._answers = orders.answers(name) if self.is_replay else RecordedAnswers(())

    def note(self, text: str) -> None:
        """Record an outcome."""
        self._track.append(self._orders.actors.code(text))
        if not self._track.is_written:
            self._orders.attempt(self._track.begin)

    def peek(self) -> str | None:
        """Return what the next recorded outcome is; None if it is unknown."""
        return self._answers.peek()

    def next(self) -> str | None:
        """Return the next recorded outcome; None if it is unknown or the order is no longer enforced."""
        if self._orders.waits.are_over:
            self._answers.give_up()
        return self._answers.next()

    def as_recorded(self, value: int) -> int:
        """Return the recorded value of the same call; when recording, record this value and return it."""
        if not self.is_replay:
            self.note(str(value))
            return value
        text = self.next()
        return int(text) if text is not None and text.isdecimal() and len(text) < MAX_DIGITS else value

    def poll(self, check: Callable[[], bool], *, is_external: bool = False) -> bool:
        """Return whether check() holds; in a replay whether it did in the recording, once it does."""
        text = self.next() if self.is_replay else None
        if text is not None:
            return text == "1" and (check() or self._comes(check, is_external))
        holds = check()
        if not self.is_replay:
            self.note(str(int(holds)))
        return holds

    def _comes(self, check: Callable[[], bool], is_external: bool) -> bool:
        def look(_: float) -> bool:
            time.sleep(LOOK_INTERVAL)
            return check()

        return bool(self.until(look, "what is polled", is_external=is_external))

    def until(self, attempt: Callable[[float], Any], whom: str, **options: Any) -> Any:
        """Wait for a recorded outcome as Waits.until() does, and give up if it does not occur."""
        result = self._orders.waits.until(attempt, self.name, whom, **options)
        if not result:
            self.give_up()
        return result

    def give_up(self, *, is_last_due: bool = True, is_known: bool = False) -> None:
        """Stop replaying outcomes, as a recorded one does not occur: the last one, if it is due.

        Where that is known of such a place (is_known), it says nothing about others.
        """
        if not is_known:
            self._orders.waits.give_up()
        self._answers.give_up(is_last_due=is_last_due)


def number_of(text: str | None) -> int | None:
    """Return a recorded number, which may be negative; None for any other text."""
    return int(text) if text is not None and text[text.startswith("-") :].isdecimal() else None


class ReorderBuffer:
    """Passes numbered results on: as they come when recording, in the recorded order in a replay.

    Each number is recorded as its difference from the count of results before it.
    """

    def __init__(self, orders: WaitingProcess, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._lock = RLock()
        self._count = 0  # of results that were passed on
        self._buffered: dict[int, Any] = {}
        self._next_number: int | None = None
        self._since = time.monotonic()
        self._wait: Wait | None = None

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
                self._count, self._next_number, self._wait = self._count + 1, None, None

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
                whom = f"result {self._next_number}"
                self._wait = self._wait or Wait(self._orders, self._choices.name, whom, self._since)
                if self._wait.is_over():
                    self.flush(pass_on)
