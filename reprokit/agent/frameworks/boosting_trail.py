"""The trail of boosting: for each round digests of its trees and of the random states after it.

To serialize one round takes XGBoost some 0.5 ms, each further one 0.01. So rounds wait and are serialized together, as
nothing changes their trees meanwhile. Where a round does change earlier ones (dart), or there are no trees, each round
has the digest of the whole model. The last round of a training always has that, too.
"""

from __future__ import annotations

import hashlib
import weakref

from ..core import trail_library as trail
from ..events.steps import RoundComputed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent

    Content = bytes | bytearray
    RoundDigest = tuple[int, Sequence[int]]  # and the leaves of each of its trees, where they are counted

WAITING = 512  # rounds of a series after which none waits any longer: half of RKT_WINDOW of native/trail/trail.h
WAITING_CELLS = 10_000_000  # rows x columns x rounds that wait at most: slow rounds wait for few, as a kill loses them

_SALT = trail.salt("uint64", (1,))


class RoundSeries:
    """The series of rounds of one thread."""

    def __init__(self, name: str) -> None:
        self.name, self.count, self.handle = name, 0, 0
        self.given = 0  # count of rounds when those that waited were given their digests
        self.generators: Any = None  # addresses of random states
        self.facts: Any = None  # read by the trail's library; per thread, as threads may train in parallel


class ModelDigests:
    """Digests of a serialized model, and of its rounds from one on; None if rounds have no trees of their own."""

    __slots__ = ("_content", "first", "rounds")

    def __init__(self, content: bytes | memoryview, rounds: list[RoundDigest] | None, first: int) -> None:
        self._content, self.rounds, self.first = content, rounds, first

    def whole(self) -> int:
        """Return the digest of all that was serialized."""
        return short_digest(hashlib.sha256(self._content))


def digests_of(trees: Sequence[Content], common: Content, rounds: int, leaves: Sequence[int] = ()) -> list[RoundDigest]:
    """Digest each of these rounds; `common` is what they share, `trees` their trees in order, as many for each.

    `leaves` are counts of the trees' leaves, where they are to be read again.
    """
    each, start = len(trees) // rounds, hashlib.sha256(common)
    digests = []
    for place in range(0, len(trees), each):
        hashed = start.copy()
        hashed.update(b"\0".join(trees[place : place + each]))
        digests.append((short_digest(hashed), leaves[place : place + each]))
    return digests


def short_digest(hashed: Any) -> int:
    """Return the first 64 bits."""
    return int.from_bytes(hashed.digest()[:8], "little")


class BoosterState:
    """What is known of a booster: its rounds that wait for their digests, and its last one."""

    def __init__(self, booster: Any, series: RoundSeries, limit: int, library: trail.Library) -> None:
        self.reference = weakref.ref(booster)
        self.series, self.limit = series, limit
        self.value, self.digests = library.buffer(1), library.buffer(2)  # its own, as threads may train in parallel
        self.waiting: list[tuple[int, int]] = []  # steps, each with the number of its round in the model
        self.known: list[RoundDigest] = []  # its rounds from the first on
        self.last = 0  # step
        self.has_rounds: bool | None = None  # whether rounds only add trees; None if not known yet
        self.is_complete = False  # whether the last step has the digest of the whole model


class BoostingTrail:
    """Writes a step for each round, and its digests when enough rounds wait."""

    def __init__(self, agent: Agent, events: Events, library: trail.Library, framework: str) -> None:
        self._agent, self._events, self._library, self._framework = agent, events, library, framework
        self._generator_addresses = trail.GeneratorAddresses()
        self.forget()

    def forget(self) -> None:
        """Start afresh, also in a forked child, which needs a file of its own."""
        self._file = trail.TrailFile(self._agent.run, lambda: self._agent.journal.identity, self._library)
        self._states: dict[int, BoosterState] = {}  # by identity of the booster
        self._rounds: Any = None  # the class of rounds

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {RoundComputed: self._round_computed}

    def failed(self, error: Exception, _handler: Handler) -> None:
        """End the trail with a warning."""
        self._events.remove(self)
        self._states = {}
        self._agent.warn(f"no further round is kept in the trail: {type(error).__name__}: {error}", "trail-ended")

    def _round_computed(self, event: RoundComputed) -> None:
        if not self._file.is_open:
            return
        series, booster = event.series, event.round.booster
        self._write_step(series)
        state = self._states.get(id(booster))
        if state is None or state.series is not series:
            self.settle(booster)
            limit = min(WAITING, WAITING_CELLS // max(1, event.round.cells()))
            state = self._states[id(booster)] = BoosterState(booster, series, limit, self._library)
            self._rounds = type(event.round)
        state.last, state.is_complete = series.count - 1, False
        state.waiting.append((state.last, event.round.number() - 1))
        if not state.has_rounds:
            self._give(state, booster)
        if series.count - series.given >= state.limit:
            self._give_all(series)

    def _write_step(self, series: RoundSeries) -> None:
        library = self._library
        if not series.handle:
            series.facts = library.buffer(trail.FACTS)
            tensors = [("trees", "uint64", [1], 8)]
            kind = f"{self._framework}.Booster"
            series.handle = self._file.series(series.name, kind, tensors, series.count, framework=self._framework)
        generators = self._generator_addresses.both()
        if generators != series.generators:
            series.generators = python, numpy = generators
            flags, salt = trail.PYTHON * bool(python) | trail.NUMPY * bool(numpy), self._generator_addresses.salt
            series.facts[0][:] = [flags, trail.LATER, 0, 0, 0, 0, 0, 0, 0, 0, 0, python, numpy, salt]
        library.step(series.handle, series.facts[1], 0)
        series.count += 1
        self._file.last = series.handle

    def _give_all(self, series: RoundSeries, *, is_end: bool = False) -> None:
        """Give the rounds of a series that wait their digests, and the whole model's to the last of its booster."""
        series.given = series.count
        for state in list(self._states.values()):
            booster = state.reference() if state.series is series else None
            if booster is not None:
                if is_end or series.count - state.last > WAITING:
                    self._complete(state, booster)
                else:
                    self._give(state, booster)

    def _give(self, state: BoosterState, booster: Any) -> None:
        """Give the rounds of a booster that wait their digests."""
        if not state.waiting:
            return
        if state.has_rounds is not False:
            numbers = [number for _, number in state.waiting]
            first = min(numbers) if state.has_rounds or not self._rounds.reads_leaves else 0
            self._write(state, self._rounds.digests(booster, first, max(numbers) + 1))
        if state.has_rounds is False:
            self._write_whole(state, self._rounds.digests(booster).whole())

    def _complete(self, state: BoosterState, booster: Any) -> None:
        """Give a booster's last round the digest of the whole model, and those that wait their own."""
        if state.is_complete:
            return
        whole = None
        if state.has_rounds and self._rounds.reads_leaves:
            self._give(state, booster)
            whole = self._rounds.whole_by_leaves(booster, state.known, self._library)
        if whole is None:
            found = self._rounds.digests(booster, min([number for _, number in state.waiting], default=0))
            whole = found.whole()
            if state.has_rounds:
                self._write(state, found)
        self._write_whole(state, whole)
        self._library.model(state.series.handle, state.last, whole)
        state.is_complete = True

    def _write(self, state: BoosterState, found: ModelDigests) -> None:
        """Write the digests of the rounds that wait; those of a model without rounds go on waiting."""
        state.has_rounds = found.rounds is not None
        if found.rounds is None:
            return
        if self._rounds.reads_leaves and found.first <= len(state.known):
            state.known[found.first :] = found.rounds
        for step, number in state.waiting:
            if found.first <= number < found.first + len(found.rounds):
                self._write_digest(state, step, found.rounds[number - found.first][0])
        state.waiting = []  # at the end: an interrupt of the user's may come at any place

    def _write_whole(self, state: BoosterState, whole: int) -> None:
        """Give the last of the rounds that wait the digest of the whole model as its own."""
        for step, _ in state.waiting[-1:]:
            self._write_digest(state, step, whole)
        state.waiting = []

    def _write_digest(self, state: BoosterState, step: int, digest: int) -> None:
        (value, value_address), (digests, digests_address) = state.value, state.digests
        value[0] = digest
        digests[:] = [0, self._library.digest(value_address, 8, _SALT)]
        self._library.given(state.series.handle, step, 0, digests_address)

    def knows(self, booster: Any) -> bool:
        """Return whether a booster has rounds in the trail."""
        return id(booster) in self._states

    def settle(self, booster: Any) -> None:
        """Complete a booster that is about to be freed or changed, of which nothing is known afterwards."""
        state = self._states.pop(id(booster), None)
        if state is not None and self._file.is_open:
            self._complete(state, booster)

    def end_training(self, series: RoundSeries) -> None:
        """Complete the boosters of a series, as a training by a function of the library has ended."""
        if self._file.is_open:
            self._give_all(series, is_end=True)

    def finish(self) -> None:
        """Complete all boosters, and close the file."""
        if self._file.is_open:
            for state in list(self._states.values()):
                booster = state.reference()
                if booster is not None:
                    self._agent.attempt(self._complete, state, booster)
        self._file.close()
