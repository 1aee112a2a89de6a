"""Tracks: a track is a name and a sequence of actors, in the order in which they had their turns.

Actors are texts: names of threads as in actors.py, or answers that a thread was given. A track is written only once it
has a second actor: with one actor no other order is possible.
"""

from __future__ import annotations

import time
from _thread import RLock
from array import array

from ..core.agent import Log
from ..core.signal_errors import pass_on
from .actors import Actors
from .callers import place
from .recording import RecordedTracks, packed
from .turns import Choices, RecordedAnswers, ReplayedTurns
from .waits import Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any, Protocol

    from ..core.agent import Agent
    from ..core.journal import Journal

    class WrittenTurns(Protocol):
        """Turns that are written and counted at the end."""

        @property
        def exact(self) -> int: ...
        @property
        def moved(self) -> int: ...
        @property
        def unused(self) -> int: ...
        def write(self) -> None: ...


MAX_TURNS = 1 << 10  # turns in a line; a SIGKILL loses no more
MAX_PENDING = 2000  # lines of a track that has one actor
FIRST_TURNS = 64  # turns in the first line
MAX_TRACKS = 10_000  # of a process
MAX_WRITTEN = 16 << 20  # bytes of a process' lines
MAX_PLACES = 10_000
COUNTS = ("exact", "moved", "unused")  # turns replayed in the recorded order, replayed in another, and not replayed


class Track:
    """Records the turns at one place. Callers must hold a lock of their own: a track is not thread-safe."""

    __slots__ = ("_first", "_is_whole", "_limit", "_orders", "_pending", "_turns", "is_written", "name")

    def __init__(self, orders: Orders, name: str) -> None:
        self.name = name
        self.is_written = False
        self._orders = orders
        self._first = -1
        self._is_whole = True  # False once turns were dropped
        self._limit = FIRST_TURNS
        self._turns = array("H")
        self._pending: list[tuple[list[str], str, int]] = []  # packed lines of a track that may never be written

    def note(self, actor: int) -> None:
        """Record a turn of an actor, given by its code; start writing the track at its second actor."""
        self.append(actor)
        if actor != self._first and not self.is_written:
            if self._first < 0:
                self._first = actor
            else:
                self._orders.attempt(self.begin)

    def append(self, actor: int) -> None:
        """Record a turn without deciding whether the track is written."""
        self._turns.append(actor)
        if len(self._turns) >= self._limit:
            self._orders.attempt(self._flush_buffer)

    def begin(self) -> None:
        """Start writing the track, beginning with the turns recorded so far."""
        if self._is_whole:
            self._is_whole = self.is_written = self._orders.begin(self)
            self.write()
        else:
            self._orders.warn(
                "orders of some queues are not recorded: too many, or a second thread came too late", "order-not-kept"
            )

    def _flush_buffer(self) -> None:
        self._limit = min(2 * self._limit, MAX_TURNS)
        if self.is_written:
            self.write()
        elif self._is_whole:
            self._pending.append(packed(self._turns, self._orders.actors.names))
            self._is_whole = len(self._pending) < MAX_PENDING
        del self._turns[:]

    def write(self) -> None:
        """Write the turns recorded since the last write."""
        pending, self._pending = self._pending, []
        if self._turns and self.is_written:
            pending.append(packed(self._turns, self._orders.actors.names))
            del self._turns[:]
        for line in pending:
            self._orders.write(self.name, line)


class Orders(Log):
    """The recorded or replayed tracks of this process."""

    finish_order = 2

    def __init__(self, run: str, journal: Journal, warn: Callable[..., None]) -> None:
        self._journal = journal
        self.warn = warn
        self._guard = RLock()  # re-entrant: while it is held, a finalizer of the script may create a lock or a queue
        self.actors = Actors()
        self._recorded = RecordedTracks(run)
        self._written: list[Track | WrittenTurns] = []
        self._replayed: list[ReplayedTurns | RecordedAnswers | WrittenTurns] = []
        self._bytes_left = MAX_WRITTEN
        self._numbers: dict[str, int] = {}
        self._choices: dict[str, Choices] = {}
        self.since = time.monotonic()
        self.waits = Waits(self)
        self._fork_handlers: list[Callable[[], object]] = []

    @property
    def is_replay(self) -> bool:
        """Whether this run has recorded tracks, even if only of other processes."""
        return self._recorded.exist

    @property
    def recorded_seconds(self) -> float:
        """The time that the recording took."""
        return self._recorded.seconds

    @property
    def has_room(self) -> bool:
        """Whether further lines can be written."""
        return self._bytes_left > 0

    def name(self, key: str) -> str:
        """Return the name of the next object that this thread creates at a place; empty beyond MAX_PLACES."""
        key = f"{key} {self.actors.current.name}"
        number = self._numbers.get(key, 0)
        if not number and len(self._numbers) >= MAX_PLACES:
            return ""
        self._numbers[key] = number + 1
        return f"{key} {number}"

    def track(self, name: str) -> Track:
        """Return a new track to record."""
        return Track(self, name)

    def turns(
        self, name: str, recorded: Sequence[str], condition: Any, *, is_optional: bool = False, is_mixed: bool = False
    ) -> ReplayedTurns:
        """Return recorded turns of a track for replaying; optional ones need not be taken before the process ends."""
        codes = array("H", map(self.actors.code, recorded))
        turns = ReplayedTurns(self, name, codes, condition, is_optional, is_mixed)
        self._replayed.append(turns)
        return turns

    def answers(self, name: str) -> RecordedAnswers:
        """Return the recorded answers of a track for replaying."""
        answers = RecordedAnswers(self.recorded_actors(name))
        self._replayed.append(answers)
        return answers

    def choices(self, kind: str, caller: FrameType, *, numbered: bool = False) -> Choices | None:
        """Return the choices of this thread at the caller's line; None if they cannot be recorded."""
        return self.attempt(self.choices_named, f"{kind} {place(caller)}", numbered)  # type: ignore[no-any-return]

    def choices_named(self, name: str, numbered: bool = False) -> Choices | None:
        """Return the choices of this thread of this name; None if they cannot be recorded."""
        if numbered:
            name = self.name(name)
            return Choices(self, name) if name else None
        name = f"{name} {self.actors.current.name}"
        choices = self._choices.get(name)
        if choices is None and len(self._choices) < MAX_PLACES:
            choices = self._choices[name] = Choices(self, name)
        return choices

    def recorded_actors(self, name: str) -> Sequence[str]:
        """Return the recorded actors of a track."""
        with self._guard:
            actors: Sequence[str] | None = self.attempt(self._recorded.take, self._journal.identity, name)
        if actors and not self._replayed:
            self._journal.write("orders", dict.fromkeys(COUNTS, 0))  # makes a forked child write its counts at its end
        return actors or ()

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the agent; turn an exception into a warning and None."""
        try:
            return function(*arguments)
        except Exception as error:
            self.warn(
                f"a turn of an order of completion may be missing: {type(error).__name__}: {error}", "order-not-kept"
            )
            pass_on(error)
            return None

    @property
    def identity(self) -> str:
        """The identity of this process."""
        return self._journal.identity

    def register(self, turns: WrittenTurns) -> None:
        """Register the turns of a pool's workers, or the places of tasks, to be written and counted at the end."""
        if not self._written and not self._replayed:
            self._journal.write("orders", dict.fromkeys(COUNTS, 0))  # as in recorded_actors()
        self._written.append(turns)
        self._replayed.append(turns)

    def write_turns(self, name: str, turns: array[int]) -> None:
        """Write a whole track whose actors are numbers."""
        numbers = sorted(set(turns))
        codes, names = {number: code for code, number in enumerate(numbers)}, list(map(str, numbers))
        for start in range(0, len(turns), MAX_TURNS):
            self.write(name, packed(array("H", map(codes.__getitem__, turns[start : start + MAX_TURNS])), names))

    def begin(self, track: Track) -> bool:
        """Register a track that has several actors; return False if there are too many tracks."""
        if len(self._written) >= MAX_TRACKS:
            self.warn(
                f"more than {MAX_TRACKS} queues and the like: the order of turns in further ones is not kept",
                "order-not-kept",
            )
            return False
        self._written.append(track)
        return True

    def write(self, name: str, line: tuple[list[str], str, int]) -> None:
        """Write a line of a track."""
        actors, turns, count = line
        self._bytes_left -= len(turns)
        if self._bytes_left > 0:
            self._journal.write("order", {"track": name, "actors": actors, "turns": turns, "count": count})
        else:
            self.warn(f"the order of turns is not kept beyond {MAX_WRITTEN} bytes of a process", "order-not-kept")

    def on_fork(self, forget: Callable[[], object]) -> None:
        """Register a function to call in forked children, which have only one thread."""
        self._fork_handlers.append(forget)

    def finish(self) -> None:
        """Write the remaining turns, and in a replay the counts of replayed turns."""
        for track in list(self._written):
            track.write()
        replayed = list(self._replayed)
        counts = {name: sum(getattr(turns, name) for turns in replayed) for name in COUNTS}
        counts["unused"] += self._recorded.unused(self._journal.identity) if self.is_replay else 0
        if any(counts.values()):
            self._journal.write("orders", counts)

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        for forget in self._fork_handlers:
            forget()
        self._guard = RLock()
        self.actors.forget()
        self.waits = Waits(self)
        self._written, self._replayed = [], []
        self._numbers.clear()
        self._choices.clear()
        self._recorded.forget()
        self._bytes_left = MAX_WRITTEN


def orders_of(agent: Agent) -> Orders:
    """Return the orders of this process; create them on first use."""
    return agent.log_of(Orders, lambda agent: Orders(agent.run, agent.journal, agent.warn))
