"""What an engine is: it makes pairs somewhere and tells what came of them; one loop serves all that wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import msgspec

from reprokit.errors import ReprokitError
from reprokit.launch.interruption import WATCHED, Interrupted
from reprokit.study import attempt as attempts
from reprokit.study.attempt import PairTask
from reprokit.study.results import PairResult, RunResult

if TYPE_CHECKING:
    from reprokit.study.engines.jobs import Jobs
    from reprokit.study.engines.local import Local


class Stop(Exception):
    """No further run is to begin. What is under way comes to its end, then the engine raises this."""

    def __init__(self, error: ReprokitError | None = None) -> None:
        super().__init__(str(error or ""))
        self.error = error


class PairListener(Protocol):
    """Is told by an engine, in the thread that called it. It may raise Stop; anything else ends all runs at once."""

    def run_ended(self, run: RunResult) -> None:
        """A run has ended: its line is to be kept."""

    def pair_ended(self, task: PairTask, pair: PairResult) -> None:
        """Both runs of a pair were made and compared."""


class PairSchedule:
    """Makes pairs by processes here or by jobs elsewhere, some at the same time if that is asked for."""

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
        """Begin as many pairs as may be made at the same time."""
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
    task: PairTask, made: Sequence[RunResult], listener: PairListener, found: PairResult | None = None
) -> PairTask | None:
    """Compare a pair whose runs these are, or return it where a run is still to be made.

    A recording that failed has no replay.
    """
    if len(made) == 1 and made[0].outcome != "finished" and task.second.mode == "replayed":
        second = attempts.not_run(task.second)
        listener.run_ended(second)
        made = [made[0], second]
    if len(made) < 2:
        return msgspec.structs.replace(task, made=made[0]) if made else task
    pair = found or attempts.compared(task, *made)
    listener.pair_ended(task, pair)
    attempts.tidy(task, pair)
    return None
