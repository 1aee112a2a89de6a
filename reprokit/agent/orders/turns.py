"""What was recorded, given again: turns for which threads wait, and texts that one thread is given one by one."""

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

PAUSE = 0.5  # seconds between two looks at whether those who wait may wait on
GRACE = 2.0  # seconds for which a thread is waited for that has ended
PATIENCE = 10.0  # seconds, or as long as it took until then, for which a process at rest waits for a turn
LONGEST = 600.0  # seconds for which it is waited for at most
MAX_LOST = 4  # times somebody did not come; then nobody waits any more
MAX_DIGITS = 10
AT_REST = 0.1  # of one processor: what loops do that only poll


class Turns:
    """The turns at one place as they were recorded, given again to those who come."""

    def __init__(self, orders: Orders, given: Sequence[int], condition: Any) -> None:
        self._orders = orders
        self._given = given
        self._left = Counter(given)
        self._condition = condition  # whose lock guards what the turns are about
        self._at = 0
        self._waiting = 0
        self._since = time.monotonic()
        self._is_held = False  # whoever's turn it is has come
        self.exact = self.moved = 0

    @property
    def unused(self) -> int:
        """How many recorded turns nobody has had."""
        return len(self._given) - self._at

    def enter(self, actor: int, other: int = -1, *, may_wait: bool = False) -> int:
        """Wait for the turn of an actor that this thread is, or of its other one; the lock is not held.

        Whoever may wait, without end, for an item or for room, and had no further turn in the recording, waited there.
        Returns whose turn it is, -1 where there are no further turns.
        """
        at, given = self._at, self._given
        if at < len(given) and given[at] != actor and given[at] != other:
            with self._condition:
                self._wait(actor, other, may_wait)
        self._is_held = True
        at, given = self._at, self._given
        return given[at] if at < len(given) else -1

    def _wait(self, actor: int, other: int, may_wait: bool) -> None:
        actors, patience = self._orders.actors, Patience(self._orders, self._since)
        self._waiting += 1
        try:
            while self._at < len(self._given) and self._given[self._at] not in (actor, other):
                at = self._at
                if self._orders.lost >= MAX_LOST:
                    self.give_up()
                    break
                self._condition.wait(PAUSE)
                if at != self._at or at >= len(self._given):
                    patience = Patience(self._orders, self._since)
                    continue
                has_ended = actors.has_ended(self._given[at])
                if self._is_held and not has_ended:  # what it waits for is no turn: it waited in the recording too
                    patience = Patience(self._orders, self._since)
                elif patience.is_over(has_ended, has_turns=not may_wait or self._left[actor] > 0):
                    self.give_up()
        finally:
            self._waiting -= 1

    def give_up(self) -> None:
        """Give no further turns: whoever's it is does not come."""
        self._orders.lost += 1
        self.moved += self.unused
        self._given = self._given[: self._at]
        self._condition.notify_all()

    def leave(self) -> None:
        """Say that this thread has not had the turn for which it came."""
        self._is_held = False

    def advance(self, actor: int) -> None:
        """Note that an actor has had its turn; the lock is held."""
        at = self._at
        self._is_held = False
        if at < len(self._given):
            if self._given[at] == actor:
                self._at = at + 1
                self._left[actor] -= 1
                self.exact += 1
            else:
                self.moved += 1
            if self._waiting:
                self._condition.notify_all()


class Patience:
    """How long somebody waits who may wait for nothing; blocks tells whether its thread can do nothing meanwhile."""

    def __init__(self, orders: Orders, since: float, *, blocks: bool = True) -> None:
        self._began = self._moved = time.monotonic()
        self._used = time.process_time()
        self._limit = LONGEST
        self._patience = min(max(PATIENCE, self._began - since), LONGEST)
        if orders.lost:  # this is another run
            self._limit = self._patience = GRACE
        elif blocks and _drives_loop():  # what is waited for may itself come through the loop
            self._limit, self._patience = PATIENCE, GRACE

    def is_over(self, has_ended: bool = False, *, has_turns: bool = True) -> bool:
        """Return whether the wait is: for what has ended or has not begun, in a process at rest, or after very long.

        A thread that had no further turn in the recording waited there too.
        """
        now, used = time.monotonic(), time.process_time()
        if used - self._used > AT_REST * (now - self._moved):
            self._moved, self._used = now, used
        waited = now - self._began
        return waited > (GRACE if has_ended else self._limit) or (has_turns and now - self._moved > self._patience)


def _drives_loop() -> bool:
    """Return whether this thread is in a callback of asyncio."""
    events: Any = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


class PolledAnswers:
    """Texts that one thread was given one after another, given again to it."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = list(reversed(given))
        self.exact = self.moved = 0

    @property
    def unused(self) -> int:
        """How many were not asked for."""
        return len(self._given)

    def next(self) -> str | None:
        """Return the next one; None where there is none."""
        if not self._given:
            return None
        self.exact += 1
        return self._given.pop()

    def give_up(self) -> None:
        """Give none any more."""
        self.moved += len(self._given)
        self._given = []


class Choices:
    """What came first for one thread at one place, as texts that repeat: noted, or in a replay given again."""

    def __init__(self, orders: Orders, name: str) -> None:
        self.is_replay = orders.is_replay
        self._orders = orders
        self._track = orders.track(name)
        self._given = orders.answers(name) if self.is_replay else PolledAnswers(())

    def note(self, text: str) -> None:
        """Note a choice."""
        self._track.append(self._orders.actors.code(text))
        if not self._track.is_written:
            self._orders.attempt(self._track.begin)

    def next(self) -> str | None:
        """Return what was chosen; None where it is not known, or nobody waits any more."""
        if self._orders.lost >= MAX_LOST:
            self._given.give_up()
        return self._given.next()

    def as_recorded(self, found: int) -> int:
        """Return what was found in the recording by the same call, and note it there."""
        if not self.is_replay:
            self.note(str(found))
            return found
        text = self.next()
        return int(text) if text is not None and text.isdigit() and len(text) < MAX_DIGITS else found

    def give_up(self) -> None:
        """Choose freely from now on: what was chosen does not come."""
        self._orders.lost += 1
        self._given.give_up()


class HeldBack:
    """Results with numbers, given on as they come and noted, or held back until it is their turn.

    What is noted of a number is how far it is from the count of results before it.
    """

    def __init__(self, orders: Orders, choices: Choices) -> None:
        self._orders = orders
        self._choices = choices
        self._lock = RLock()
        self._count = 0  # of results that were given on
        self._early: dict[int, Any] = {}
        self._wanted: int | None = None
        self._since = time.monotonic()
        self._patience: Patience | None = None

    def come(self, number: int, result: Any, give: Callable[[int, Any], object]) -> None:
        """Take a result, and give on those whose turn it is."""
        with self._lock:
            if not self._choices.is_replay:
                self._choices.note(str(number - self._count))
                self._count += 1
                give(number, result)
                return
            self._early[number] = result
            while self._early:
                if self._wanted is None:
                    text = self._choices.next()
                    is_known = text is not None and text.lstrip("-").isdecimal()
                    self._wanted = self._count + int(str(text)) if is_known else min(self._early)
                if self._wanted not in self._early:
                    break
                give(self._wanted, self._early.pop(self._wanted))
                self._count, self._wanted, self._patience = self._count + 1, None, None

    def give_all(self, give: Callable[[int, Any], object]) -> None:
        """Hold nothing back any more."""
        with self._lock:
            self._choices.give_up()
            self._wanted = None
            while self._early:
                give(*self._early.popitem())

    def look(self, give: Callable[[int, Any], object]) -> None:
        """Where somebody waits for a result: give all if those held back have waited for too long."""
        with self._lock:
            if self._early:
                self._patience = self._patience or Patience(self._orders, self._since)
                if self._patience.is_over():
                    self.give_all(give)
