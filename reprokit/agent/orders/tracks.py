"""Tracks: a track is a name and a sequence of actors, in the order in which they had their turns.

Actors are texts: of threads those of actors.py, or what a thread was told. A track is written once it has a second
actor: before that nothing could have been in another order.
"""

from __future__ import annotations

import sys
import time
from _thread import RLock
from array import array

from ..core.signal_errors import pass_on
from .actors import Actors
from .recording import RecordedTracks, packed
from .turns import Choices, PolledAnswers, Turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from types import FrameType
    from typing import Any

    from ..core.journal import Journal
    from .worker_turns import WorkerTurns

MAX_TURNS = 1 << 10  # of one line; what a SIGKILL loses at most
MAX_PENDING = 2000  # lines of a track that has one actor
FIRST_TURNS = 64  # of the first line
MAX_TRACKS = 10_000  # of a process
MAX_WRITTEN = 16 << 20  # bytes of a process' lines
MAX_PLACES = 10_000
_AGENT = __name__.partition(".")[0]
COUNTS = ("exact", "moved", "unused")  # turns given again in their order, given otherwise, never asked for


class Track:
    """The turns at one place, being recorded. Who notes them sees to it that no two threads do so at once."""

    __slots__ = ("_first", "_is_whole", "_limit", "_orders", "_pending", "_turns", "is_written", "name")

    def __init__(self, orders: Orders, name: str) -> None:
        self.name = name
        self.is_written = False
        self._orders = orders
        self._first = -1
        self._is_whole = True  # nothing of it was dropped
        self._limit = FIRST_TURNS
        self._turns = array("H")
        self._pending: list[tuple[list[str], str, int]] = []  # of a track that may never be written

    def note(self, actor: int) -> None:
        """Note that an actor, by its code, has had a turn; the track is written once it has another one."""
        self.append(actor)
        if actor != self._first and not self.is_written:
            if self._first < 0:
                self._first = actor
            else:
                self._orders.attempt(self.begin)

    def append(self, actor: int) -> None:
        """Note a turn, without a decision about whether the track is written."""
        self._turns.append(actor)
        if len(self._turns) >= self._limit:
            self._orders.attempt(self._take)

    def begin(self) -> None:
        """Write it from now on, and what was noted so far."""
        if self._is_whole:
            self._is_whole = self.is_written = self._orders.begin(self)
            self.write()
        else:
            self._orders.warn("orders of some queues are not recorded: too many, or a second thread came too late")

    def _take(self) -> None:
        self._limit = min(2 * self._limit, MAX_TURNS)
        if self.is_written:
            self.write()
        elif self._is_whole:
            self._pending.append(packed(self._turns, self._orders.actors.names))
            self._is_whole = len(self._pending) < MAX_PENDING
        del self._turns[:]

    def write(self) -> None:
        """Write what was noted since the last time."""
        pending, self._pending = self._pending, []
        if self._turns and self.is_written:
            pending.append(packed(self._turns, self._orders.actors.names))
            del self._turns[:]
        for line in pending:
            self._orders.write(self.name, line)


class Orders:
    """The tracks of this process."""

    def __init__(self, run: str, journal: Journal, warn: Callable[[str], None]) -> None:
        self._journal = journal
        self.warn = warn
        self._guard = RLock()  # while it is held, a finalizer of the script's may make a lock or a queue
        self.actors = Actors()
        self._recorded = RecordedTracks(run)
        self._begun: list[Track | WorkerTurns] = []
        self._again: list[Turns | PolledAnswers | WorkerTurns] = []
        self._room = MAX_WRITTEN
        self._numbers: dict[str, int] = {}
        self._choices: dict[str, Choices] = {}
        self.since = time.monotonic()
        self.lost = 0  # in a replay: how often somebody did not come who came in the recording
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

    def turns(self, given: Sequence[str], condition: Any) -> Turns:
        """Return recorded turns, to be given again."""
        turns = Turns(self, array("H", map(self.actors.code, given)), condition)
        self._again.append(turns)
        return turns

    def answers(self, name: str) -> PolledAnswers:
        """Return the recorded answers of a track, to be given again."""
        answers = PolledAnswers(self.given(name))
        self._again.append(answers)
        return answers

    def choices(self, kind: str, caller: FrameType, *, numbered: bool = False) -> Choices | None:
        """Return the choices of this thread at the place of the caller; None where they cannot be kept."""
        return self.attempt(self._choices_at, f"{kind} {place(caller)}", numbered)  # type: ignore[no-any-return]

    def _choices_at(self, name: str, numbered: bool) -> Choices | None:
        if numbered:
            name = self.name(name)
            return Choices(self, name) if name else None
        name = f"{name} {self.actors.mine.name}"
        known = self._choices.get(name)
        if known is None and len(self._choices) < MAX_PLACES:
            known = self._choices[name] = Choices(self, name)
        return known

    def given(self, name: str) -> Sequence[str]:
        """Return the recorded actors of a track."""
        with self._guard:
            given: Sequence[str] | None = self.attempt(self._recorded.take, self._journal.identity, name)
        if given and not self._again:
            self._journal.write("orders", dict.fromkeys(COUNTS, 0))  # a forked child has something to tell at its end
        return given or ()

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of ours; what goes wrong becomes a warning, and None."""
        try:
            return function(*arguments)
        except Exception as error:
            self.warn(f"a turn of an order of completion may be missing: {type(error).__name__}: {error}")
            pass_on(error)
            return None

    @property
    def identity(self) -> str:
        """The name of this process."""
        return self._journal.identity

    def keep(self, turns: WorkerTurns) -> None:
        """Write the turns of a pool's workers at the end, or count them."""
        if not self._begun and not self._again:
            self._journal.write("orders", dict.fromkeys(COUNTS, 0))  # as in given()
        self._begun.append(turns)
        self._again.append(turns)

    def write_turns(self, name: str, turns: array[int]) -> None:
        """Write a whole track of numbers."""
        numbers = sorted(set(turns))
        codes, names = {number: code for code, number in enumerate(numbers)}, list(map(str, numbers))
        for start in range(0, len(turns), MAX_TURNS):
            self.write(name, packed(array("H", map(codes.__getitem__, turns[start : start + MAX_TURNS])), names))

    def begin(self, track: Track) -> bool:
        """Keep a track that has several actors; False where there are too many."""
        if len(self._begun) >= MAX_TRACKS:
            self.warn(f"more than {MAX_TRACKS} queues and the like: the order of turns in further ones is not kept")
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
            self.warn(f"the order of turns is not kept beyond {MAX_WRITTEN} bytes of a process")

    def on_fork(self, forget: Callable[[], object]) -> None:
        """Call this in forked children, in which no thread is left that could have turns."""
        self._forgetting.append(forget)

    def finish(self) -> None:
        """Write what is left, and in a replay how many turns were given again."""
        for track in list(self._begun):
            track.write()
        again = list(self._again)
        counts = {name: sum(getattr(each, name) for each in again) for name in COUNTS}
        counts["unused"] += self._recorded.unused(self._journal.identity) if self.is_replay else 0
        if any(counts.values()):
            self._journal.write("orders", counts)

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        for forget in self._forgetting:
            forget()
        self._guard = RLock()
        self.actors.forget()
        self._begun, self._again = [], []
        self._numbers.clear()
        self._choices.clear()
        self._recorded.forget()
        self._room = MAX_WRITTEN


def caller_outside(names: Container[str]) -> FrameType | None:
    """Return the first caller that is in none of these modules and packages, nor in the agent."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        name = str(caller.f_globals.get("__name__"))
        package = name.partition(".")[0]
        if name not in names and package not in names and package != _AGENT:
            break
        caller = caller.f_back
    return caller


def place(caller: FrameType) -> str:
    """Return file and line of a caller."""
    return f"{caller.f_code.co_filename.rpartition('/')[2]}:{caller.f_lineno}"


def creates_referent(caller: FrameType) -> bool:
    """Return whether a manager of multiprocessing makes here what its clients share."""
    return caller.f_code.co_name == "create" and caller.f_globals.get("__name__") == "multiprocessing.managers"
