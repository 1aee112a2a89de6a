"""Boosting rounds of XGBoost and LightGBM as events: a step is a round of any booster of the thread."""

from __future__ import annotations

import sys
from _thread import _local
from functools import partial

from ..core import trail_library as trail
from ..core.signal_errors import pass_on
from ..events.steps import Events, RoundComputed, RoundScored, UpdateDone, UpdateDue, tell
from .boosting_trail import BoostingTrail, RoundSeries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..core.patching import Function

    Columns = dict[str, list[Any]]  # columns of the nodes of trees

NODES = {  # columns of trees, and their types
    "tree": "int32", "left": "int32", "right": "int32", "feature": "int32", "split": "float64",
    "gain": "float64", "cover": "float64", "value": "float64",
}  # fmt: skip


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
                if self.events.update_due:
                    tell(self.events.update_due, UpdateDue(thread.series))
                result = original(booster, *arguments, **keywords)
                thread.is_open = True
                if self.events.round_computed:
                    try:  # as attempt() does; a round may take less than a millisecond
                        thread.last = round_of(booster, *arguments, **keywords)
                    except Exception as error:
                        thread.last = None
                        self._agent.failed(round_of, error)
                        pass_on(error)
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
            if self.events.update_done:
                tell(self.events.update_done, UpdateDone(self._thread.series))

    def changes(self, original: Function) -> Function:
        """Wrap a method that changes or frees a booster, so that the trail has digests of what it was before."""

        def change(booster: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._trail is not None:
                self._agent.attempt(self._settle, booster, arguments)
            return original(booster, *arguments, **keywords)

        return change

    def _settle(self, booster: Any, arguments: tuple[Any, ...]) -> None:
        assert self._trail is not None
        if self._trail.knows(booster) and not _is_schedule(*arguments[:1]):
            self._trail.settle(booster)

    def end_training(self) -> None:
        """Report the end of the last round of this thread, as train or cv has ended."""
        self.end_round()
        if self._trail is not None and self._thread.series is not None:
            self._agent.attempt(self._trail.end_training, self._thread.series)

    def finish(self) -> None:
        """Close the trail."""
        if self._trail is not None:
            self._trail.finish()

    def forget(self) -> None:
        """In a forked child: start new series of rounds."""
        self._thread = ThreadRounds()
        if self._trail is not None:
            self._trail.forget()


def _is_schedule(settings: Any = None) -> bool:
    """Return whether settings, or the name of one, are the learning rate, which callbacks set before each round."""
    names = {settings} if isinstance(settings, str) else set(dict(settings or ()))
    return bool(names) and names <= {"learning_rate", "eta"}


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
