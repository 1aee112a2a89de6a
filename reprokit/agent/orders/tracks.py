"""Tracks: a track is a name and a sequence of actors, in the order in which they had their turns.

Actors are texts, of threads those of actors.py. A track is written once it has a second actor: before that nothing
could have been in another order. An answer that a thread was given by a call that polls, as of `empty()`, is an actor
of a track of that thread alone, which is written all the same.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from array import array

from .actors import Actors
from .recording import RecordedTracks, packed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.journal import Journal

MAX_TURNS = 16 << 10  # of one line
FIRST_TURNS = 64  # after which a track is written for the first time, so that a SIGKILL loses little
MAX_TRACKS = 10_000  # of a process
MAX_WRITTEN = 16 << 20  # bytes of a process' lines
MAX_PLACES = 10_000
PAUSE = 0.5  # seconds between two looks at whether those who wait may wait on
GRACE = 2.0  # seconds for which a thread is waited for that has ended
PATIENCE = 10.0  # seconds, or as long as it took until then, for which a process at rest waits for a turn
LONGEST = 600.0  # seconds for which it is waited for at most
AT_REST = 0.02  # of one processor
COUNTS = ("exact", "moved", "unused")  # turns given again in their order, given otherwise, never asked for


class Track:
    """The turns at one place, being recorded. Who notes them sees to it that no two threads do so at once."""

    __slots__ = ("_first", "_limit", "_orders", "_pending", "_turns", "is_written", "name")

    def __init__(self, orders: Orders, name: str) -> None:
        self.name = name
        self.is_written = False
        self._orders = orders
        self._first = -1
        self._limit = FIRST_TURNS
        self._turns = array("H")
        self._pending: list[tuple[list[str], str, int]] = []  # of a track that may never be written

    def note(self, actor: int) -> None:
        """Note that an actor, by its code, has had a turn."""
        self._turns.append(actor)
        if actor != self._first and not self.is_written:
            self._orders.attempt(self._next_actor, actor)
        if len(self._turns) >= self._limit:
            self._orders.attempt(self._take)

    @property
    def first(self) -> int:
        """The actor of the first turn; -1 before it."""
        return self._first

    def _next_actor(self, actor: int) -> None:
        if self._first < 0:
            self._first = actor
        else:
            self.begin()

    def begin(self) -> None:
        """Write it from now on, and what was noted so far."""
        self.is_written = self._orders.begin(self)
        self._limit = FIRST_TURNS if self.is_written else 1  # of too many tracks nothing is kept
        self.write()

    def _take(self) -> None:
        self._limit = min(2 * self._limit, MAX_TURNS)
        if self.is_written:
            self.write()
        elif len(self._pending) < MAX_PLACES and self._orders.has_room:
            self._pending.append(packed(self._turns, self._orders.actors.names))
            del self._turns[:]
        else:
            del self._turns[:]

    def write(self) -> None:
        """Write what was noted since the last time."""
        pending, self._pending = self._pending, []
        if self._turns:
            pending.append(packed(self._turns, self._orders.actors.names))
            del self._turns[:]
        for line in pending if self.is_written else ():
            self._orders.write(self.name, line)


class Turns:
    """The turns at one place as they were recorded, given again to those who come."""

    def __init__(self, orders: Orders, given: Sequence[int], condition: Any) -> None:
        self._orders = orders
        self._given = given
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

    def enter(self) -> None:
        """Wait until it is this thread's turn; the lock is not held."""
        me, at = self._orders.actors.mine.code, self._at
        if at < len(self._given) and self._given[at] != me:
            with self._condition:
                self._wait(me)
        self._is_held = True

    def _wait(self, me: int) -> None:
        patience = Patience(self._orders, self._since)
        self._waiting += 1
        try:
            while self._at < len(self._given) and self._given[self._at] != me:
                at = self._at
                self._condition.wait(PAUSE)
                if at != self._at or self._at >= len(self._given):
                    patience = Patience(self._orders, self._since)
                    continue
                has_ended = self._orders.actors.has_ended(self._given[at])
                if self._is_held and not has_ended:
                    patience = Patience(
                        self._orders, self._since
                    )  # what it waits for is no turn: it waited in the recording too
                elif patience.is_over(has_ended):
                    self.give_up()
        finally:
            self._waiting -= 1

    def give_up(self) -> None:
        """Give no further turns: whoever's it is does not come."""
        self._orders.has_given_up = True
        self.moved += self.unused
        self._given = self._given[: self._at]
        self._condition.notify_all()

    def leave(self) -> None:
        """Say that this thread has not had the turn for which it came."""
        self._is_held = False

    def advance(self) -> None:
        """Note that this thread has had its turn; the lock is held."""
        at = self._at
        self._is_held = False
        if at < len(self._given):
            if self._given[at] == self._orders.actors.mine.code:
                self._at = at + 1
                self.exact += 1
            else:
                self.moved += 1
            if self._waiting:
                self._condition.notify_all()


class Answers:
    """What calls that poll answered in one thread, given again to it."""

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


class Patience:
    """How long somebody waits who may wait for nothing."""

    def __init__(self, orders: Orders, since: float) -> None:
        self._began = self._moved = time.monotonic()
        self._used = time.process_time()
        self._limit = LONGEST
        self._patience = min(max(PATIENCE, self._began - since), LONGEST)
        if orders.has_given_up:  # what is given again is another run
            self._limit = self._patience = GRACE

    def is_over(self, has_ended: bool) -> bool:
        """Return whether the wait is: for a thread that has ended, in a process at rest, or after very long."""
        now, used = time.monotonic(), time.process_time()
        if used - self._used > AT_REST * (now - self._moved):
            self._moved, self._used = now, used
        waited = now - self._began
        return waited > (GRACE if has_ended else self._limit) or now - self._moved > self._patience


class Orders:
    """The tracks of this process."""

    def __init__(self, run: str, journal: Journal, warn: Callable[[str], None]) -> None:
        self._journal = journal
        self._warn = warn
        self._guard = allocate_lock()
        self.actors = Actors()
        self._recorded = RecordedTracks(run)
        self._begun: list[Track] = []
        self._again: list[Turns | Answers] = []
        self._room = MAX_WRITTEN
        self._numbers: dict[str, int] = {}
        self.has_given_up = False  # in a replay: somebody did not come who came in the recording
        self._forgetting: list[Callable[[], object]] = []

    @property
    def is_replay(self) -> bool:
        """Whether there are recorded tracks, be they of other processes."""
        return self._recorded.are_there

    @property
    def has_room(self) -> bool:
        """Whether further lines can be written."""
        return self._room > 0

    def name(self, place: str) -> str:
        """Return the name of the next thing that this thread makes at a place; empty for too many places."""
        place = f"{place} {self.actors.mine.name}"
        number = self._numbers.get(place, 0)
        if not number and len(self._numbers) >= MAX_PLACES:
            return ""
        self._numbers[place] = number + 1
        return f"{place} {number}"

    def track(self, name: str) -> Track:
        """Return a track to record."""
        return Track(self, name)

    def turns(self, name: str, condition: Any) -> Turns | None:
        """Return the recorded turns of a track, to be given again; None where there are none."""
        given = self.given(name)
        if not given:
            return None
        turns = Turns(self, array("H", map(self.actors.code, given)), condition)
        self._again.append(turns)
        return turns

    def answers(self, name: str) -> Answers:
        """Return the recorded answers of a track, to be given again."""
        answers = Answers(self.given(name))
        self._again.append(answers)
        return answers

    def given(self, name: str) -> Sequence[str]:
        """Return the recorded actors of a track."""
        with self._guard:
            given: Sequence[str] | None = self.attempt(self._recorded.actors, self._journal.identity, name)
        if given and not self._again:
            self._journal.write("orders", dict.fromkeys(COUNTS, 0))  # a forked child has something to tell at its end
        return given or ()

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of ours; what goes wrong becomes a warning, and None."""
        try:
            return function(*arguments)
        except Exception as error:
            self._warn(f"order of turns: {type(error).__name__}: {error}")
            return None

    def begin(self, track: Track) -> bool:
        """Keep a track that has several actors; False where there are too many."""
        if len(self._begun) >= MAX_TRACKS:
            self._warn(f"more than {MAX_TRACKS} queues and the like: the order of turns in further ones is not kept")
            return False
        self._begun.append(track)
        return True

    def write(self, name: str, line: tuple[list[str], str, int]) -> None:
        """Write a line of a track."""
        actors, turns, count = line
        self._room -= len(turns)
        if self._room > 0:
            self._journal.write("order", {"track": name, "actors": actors, "turns": turns, "count": count})
        else:
            self._warn(f"the order of turns is not kept beyond {MAX_WRITTEN} bytes of a process")

    def on_fork(self, forget: Callable[[], object]) -> None:
        """Call this in forked children, in which no thread is left that could have turns."""
        self._forgetting.append(forget)

    def finish(self) -> None:
        """Write what is left, and in a replay how many turns were given again."""
        for track in list(self._begun):
            track.write()
        again = list(self._again)
        counts = {name: sum(getattr(each, name) for each in again) for name in COUNTS}
        if any(counts.values()):
            self._journal.write("orders", counts)

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        for forget in self._forgetting:
            forget()
        self._guard = allocate_lock()
        self.actors.forget()
        self._begun, self._again = [], []
        self._numbers.clear()
        self._recorded.forget()
        self._room = MAX_WRITTEN
