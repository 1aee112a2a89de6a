"""Defines an engine, which executes pairs and reports their results, and the loop that all waiting engines share."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import msgspec

from reprokit.core.errors import ReprokitError
from reprokit.run.interruption import WATCHED, Interrupted
from reprokit.study import attempt as attempts
from reprokit.study.attempt import PairTask
from reprokit.study.results import PairResult, RunResult

if TYPE_CHECKING:
    from reprokit.study.engines.jobs import Jobs
    from reprokit.study.engines.local import Local


class Stop(Exception):
    """Raised when no further run may begin; the engine raises it after the runs in progress have ended."""

    def __init__(self, error: ReprokitError | None = None) -> None:
        super().__init__(str(error or ""))
        self.error = error


class PairListener(Protocol):
    """Receives an engine's reports in the calling thread. It may raise Stop; any other exception ends all runs."""

    def run_ended(self, run: RunResult) -> None:
        """Store the result of a run that has ended."""

    def pair_ended(self, task: PairTask, pair: PairResult) -> None:
        """Store the comparison of a pair."""


class PairSchedule:
    """Executes pairs by local processes or remote jobs, several at a time if that is configured."""

    def __init__(self, workplace: Local | Jobs, parallel: int) -> None:
        self._workplace, self._parallel = workplace, parallel
        self._again: list[PairTask] = []  # whose second run is still to be made
        self._asked = 0
        self._stop: Stop | None = None

    def make(self, pairs: Iterator[PairTask], listener: PairListener) -> None:
        """Make the pairs, in their order, each taken from the iterator (which may raise Stop) only when its turn comes.

        A signal ends what is under way, and raises Interrupted then.
        """
        watched = [number for number in WATCHED if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup does
        before = {number: signal.signal(number, self._take) for number in watched}
        try:
            self._workplace.open(listener)
            self._make(pairs, listener)
        finally:
            self._workplace.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _make(self, pairs: Iterator[PairTask], listener: PairListener) -> None:
        while True:
            try:
                self._begin_some(pairs, listener)
                if not self._workplace.busy:
                    break
                rest = self._workplace.settle(listener)
                self._again += [rest] if rest is not None else []
            except Stop as stop:
                self._stop = self._stop or stop
                self._workplace.hold()
            except Interrupted as interrupted:
                self._asked = self._asked or interrupted.number
        if self._asked:
            raise Interrupted(self._asked)
        if self._stop is not None:
            raise self._stop

    def _begin_some(self, pairs: Iterator[PairTask], listener: PairListener) -> None:
        """Begin as many pairs as may run at the same time."""
        while self._workplace.busy < self._parallel and not (self._asked or self._stop):
            task = self._again.pop(0) if self._again else next(pairs, None)
            if task is None:
                return
            rest = continued(task, [task.made] if task.made is not None else [], listener)
            if rest is not None:
                self._workplace.begin(rest)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number
        self._workplace.interrupt(number)


def continued(
    task: PairTask, runs: Sequence[RunResult], listener: PairListener, compared_pair: PairResult | None = None
) -> PairTask | None:
    """Compare a pair whose runs these are, or return it where a run is still to be made.

    A recording that failed has no replay.
    """
    if len(runs) == 1 and runs[0].outcome != "finished" and task.second.mode == "replayed":
        second = attempts.not_run(task.second)
        listener.run_ended(second)
        runs = [runs[0], second]
    if len(runs) < 2:
        return msgspec.structs.replace(task, made=runs[0]) if runs else task
    pair = compared_pair or attempts.compared(task, *runs)
    listener.pair_ended(task, pair)
    attempts.tidy(task, pair)
    return None
