"""Boosting rounds of XGBoost and LightGBM as events: a step is a round of any booster of the thread."""

from __future__ import annotations

import hashlib
import sys
from _thread import _local
from functools import partial

from ..core import trail_library as trail
from ..events.steps import Events, RoundComputed, RoundScored, UpdateDone, UpdateDue, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..core.patching import Function
    from ..events.steps import Handler, TrainingEvent

    Columns = dict[str, list[Any]]  # columns of the nodes of trees

NODES = {  # columns of trees, and their types
    "tree": "int32", "left": "int32", "right": "int32", "feature": "int32", "split": "float64",
    "gain": "float64", "cover": "float64", "value": "float64",
}  # fmt: skip


class RoundSeries:
    """The series of rounds of one thread."""

    def __init__(self, name: str) -> None:
        self.name, self.count, self.handle = name, 0, 0
        self.buffers: Any = None  # read by the trail's library; per thread, as threads may train in parallel


class ThreadRounds(_local):
    series: RoundSeries | None = None
    is_open = False  # whether a round was computed whose end was not reported
    last: Any = None  # round


class BoostingHooks:
    """Reports the rounds of one library as events."""

    def __init__(self, agent: Agent, framework: str) -> None:
        self._agent, self.events, self._thread = agent, Events(agent.failed), ThreadRounds()
        library = trail.load(agent.run)
        self._trail = None if library is None else BoostingTrail(agent, self.events, library, framework)
        if self._trail is not None:
            self.events.add(self._trail)
        agent.begin_events(framework, self.events)

    def updates(self, round_of: Function) -> Callable[[Function], Function]:
        """Return a wrapper of the method that computes a round; `round_of` makes the round from its arguments."""

        def make(original: Function) -> Function:
            def update(booster: Any, *arguments: Any, **keywords: Any) -> Any:
                self.end_round()
                thread = self._thread
                if thread.series is None:
                    thread.series = RoundSeries(self._agent.name("booster"))
                tell(self.events.update_due, UpdateDue(thread.series))
                result = original(booster, *arguments, **keywords)
                thread.is_open = True
                if self.events.round_computed:
                    thread.last = self._agent.attempt(partial(round_of, booster, *arguments, **keywords))
                    if thread.last is not None:
                        tell(self.events.round_computed, RoundComputed(thread.last, thread.series))
                return result

            return update

        return make

    def scores(self, read: Callable[..., RoundScored]) -> Callable[[Function], Function]:
        """Return a wrapper of a method that evaluates; `read` makes the event from its result and arguments."""

        def make(original: Function) -> Function:
            def evaluate(booster: Any, *arguments: Any, **keywords: Any) -> Any:
                result = original(booster, *arguments, **keywords)
                if self.events.round_scored and self._thread.is_open:
                    event = self._agent.attempt(
                        partial(read, self._thread.last, result, booster, *arguments, **keywords)
                    )
                    if event is not None:
                        tell(self.events.round_scored, event)
                return result

            return evaluate

        return make

    def end_round(self) -> None:
        """Report the end of the last round of this thread."""
        if self._thread.is_open:
            self._thread.is_open, self._thread.last = False, None
            tell(self.events.update_done, UpdateDone(self._thread.series))

    def finish(self) -> None:
        """Close the trail."""
        if self._trail is not None:
            self._trail.finish()

    def forget(self) -> None:
        """In a forked child: start new series of rounds."""
        self._thread = ThreadRounds()
        if self._trail is not None:
            self._trail.forget()


class BoostingTrail:
    """The trail of boosting: for each round digests of the trees that it added and of the random states after it."""

    def __init__(self, agent: Agent, events: Events, library: trail.Library, framework: str) -> None:
        self._agent, self._events, self._library, self._framework = agent, events, library, framework
        self._generator_addresses = trail.GeneratorAddresses()
        self.forget()

    def forget(self) -> None:
        """Start afresh, also in a forked child, which needs a file of its own."""
        self._file = trail.TrailFile(self._agent.run, lambda: self._agent.journal.identity, self._library)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {RoundComputed: self._round_computed}

    def failed(self, error: Exception, _handler: Handler) -> None:
        """End the trail with a warning."""
        self._events.remove(self)
        self._agent.warn(f"no further round is kept in the trail: {type(error).__name__}: {error}")

    def _round_computed(self, event: RoundComputed) -> None:
        series, library = event.series, self._library
        if not self._file.is_open:
            return
        if not series.handle:
            series.buffers = library.buffer(trail.FACTS), library.buffer(1), library.buffer(2)
            tensors = [("trees", "uint64", [1], 8)]
            kind = f"{self._framework}.Booster"
            series.handle = self._file.series(series.name, kind, tensors, series.count, framework=self._framework)
        python, numpy = self._generator_addresses.both()
        flags = trail.PYTHON * bool(python) | trail.NUMPY * bool(numpy)
        (facts, facts_address), (model, model_address), (pointers, pointers_address) = series.buffers
        model[0] = int.from_bytes(hashlib.sha256(event.round.model()).digest()[:8], "little")
        pointers[:] = [0, model_address]
        facts[:] = [flags, trail.HERE, 0, 0, 0, 0, 0, 0, 0, 0, 0, python, numpy, self._generator_addresses.salt]
        library.step(series.handle, facts_address, pointers_address)
        series.count += 1
        self._file.last = series.handle

    def finish(self) -> None:
        """Close the file."""
        self._file.close()


def unpatched(function: Any) -> Any:
    """Return a library's function without the agent's patch."""
    return getattr(function, "__wrapped__", function)


def arrays_of(columns: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield name and array of each column of trees, and the depths of the trees."""
    numpy = sys.modules["numpy"]
    for name, dtype in NODES.items():
        yield name, numpy.asarray(columns[name], dtype)
    depths: dict[int, int] = {}
    depth_of: dict[tuple[int, int], int] = {}  # by tree and node; parents come before their children
    first = 0
    for row, tree in enumerate(columns["tree"]):
        if tree not in depths:
            depths[tree], first = 0, row
        depth = depth_of.get((tree, row - first), 0)
        depths[tree] = max(depths[tree], depth)
        for side in ("left", "right"):
            if columns[side][row] >= 0:
                depth_of[tree, columns[side][row]] = depth + 1
    yield "depth", numpy.asarray(list(depths.values()), "int32")
