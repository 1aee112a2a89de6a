"""Says on a terminal how many of the recorded steps a replay has made, and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from reprokit.core.errors import ReprokitError
from reprokit.core.messages import say, time_left
from reprokit.model.plan import Plan
from reprokit.run.part import Launch, RunPart, Watch
from reprokit.run.process import Child
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory

FIRST, MOST = 5.0, 60.0  # seconds between lines: they become rarer
SLOWER = 1.5

Steps = dict[tuple[str, str], int]  # by process and optimizer


class ReplayProgress(RunPart):
    """The steps of a replay, beside those of its recording."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._run: RunDirectory | None = None
        self._recorded: Steps | None = None
        self._pause = FIRST
        self._next = time.monotonic() + FIRST
        self._first: tuple[float, int] | None = None  # time and steps, when steps were first seen

    def started(self, launch: Launch) -> None:
        self._run = RunDirectory(launch.path)

    def watches(self) -> Iterable[Watch]:
        return (self._look,)

    def _look(self, _child: Child) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        with suppress(ReprokitError, OSError):  # a trail that is just being written
            self._tell(now)
        self._pause = min(self._pause * SLOWER, MOST)
        self._next = now + self._pause

    def _tell(self, now: float) -> None:
        asked = self._plan.replay_of
        if asked is None or self._run is None:
            return
        if self._recorded is None:
            self._recorded = steps_of(RunDirectory(Path(asked.path)))
        longest = max(self._recorded, key=self._recorded.__getitem__, default=None)
        if longest is None:
            return
        done, total = steps_of(self._run).get(longest, 0), self._recorded[longest]
        if not 0 < done < total:
            return
        words = f"step {done:,} of {total:,}"
        if self._first is None:
            self._first = now, done
        elif done > self._first[1]:
            words += f", {time_left((total - done) * (now - self._first[0]) / (done - self._first[1]))}"
        say(words)


def steps_of(run: RunDirectory) -> Steps:
    """Return how many steps the trail of a run has, by process and optimizer."""
    return {(series.process, series.name): series.count for trail in trails.read(run) for series in trail.series}


PART = ReplayProgress
