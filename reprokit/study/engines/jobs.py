"""Pairs made by other machines: each is a job of its own, which a cluster is given and the desk takes back."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, Protocol

from reprokit import rundir
from reprokit.errors import CannotBegin
from reprokit.launch.interruption import WATCHED, Interrupted
from reprokit.launch.messages import say, warn
from reprokit.study.attempt import PairTask
from reprokit.study.engines.desk import Desk, lost_words
from reprokit.study.engines.engine import Listener, Stop
from reprokit.study.engines.work import NOW, UNLESS_BEGUN, Claim, Ended

POLL: Final = 0.2  # seconds between two looks at what is under way
GRACE: Final = 60.0  # seconds that jobs have to end when the study is interrupted
SILENCE: Final = 30.0  # seconds without a sign of life after which an earlier job is none any more
LATE: Final = 2.0  # seconds by which what a job that died has left may come to be seen


class Cluster(Protocol):
    """What runs jobs somewhere."""

    def submit(self, place: str, name: str) -> None:
        """Have `work.work` called with these, once."""

    def ended(self, name: str) -> str | None:
        """How a job has ended, in words; None as long as it waits or goes on."""

    def cancel(self, name: str) -> None:
        """A job is of no more use."""

    def close(self) -> None:
        """Nothing more is asked for."""


class Jobs:
    """Pairs made by a cluster, some at the same time if that is asked for; one that dies costs one run."""

    def __init__(self, desk: Desk, parallel: int, cluster: Callable[[], Cluster]) -> None:
        self._desk, self._parallel, self._opened = desk, parallel, cluster
        self._working: list[str] = []
        self._again: list[PairTask] = []  # whose second run is still to be made
        self._asked = 0
        self._stop: Stop | None = None

    def make(self, pairs: Iterator[PairTask], listener: Listener) -> None:
        """Make the pairs; a signal ends what is under way, and raises Interrupted then."""
        before = {number: signal.signal(number, self._take) for number in _not_ignored()}
        try:
            cluster = self._opened()
            try:
                self._earlier(listener)
                self._make(cluster, pairs, listener)
            finally:
                self._abandon(cluster)
                cluster.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _make(self, cluster: Cluster, pairs: Iterator[PairTask], listener: Listener) -> None:
        while True:
            try:
                self._submit_some(cluster, pairs)
                if not self._working:
                    break
                name, words = self._wait(cluster)
                self._working.remove(name)
                self._settle(name, words, listener)
            except Stop as stop:
                self._begin_nothing_more(stop)
        if self._asked:
            raise Interrupted(self._asked)
        if self._stop is not None:
            raise self._stop

    def _submit_some(self, cluster: Cluster, pairs: Iterator[PairTask]) -> None:
        while len(self._working) < self._parallel and not (self._asked or self._stop):
            task = self._again.pop(0) if self._again else next(pairs, None)
            if task is None:
                return
            name = self._desk.hand_out(task)
            self._working.append(name)
            cluster.submit(self._desk.place, name)

    def _begin_nothing_more(self, stop: Stop) -> None:
        if self._stop is None:
            self._stop = stop
            for name in self._working:
                self._desk.tell(name, UNLESS_BEGUN)

    def _wait(self, cluster: Cluster) -> tuple[str, str]:
        """The job that has ended first, and how; what does not end in time when it is asked to is left to itself."""
        deadline = math.inf
        while True:
            if self._asked and deadline == math.inf:
                deadline = time.monotonic() + GRACE
                for name in self._working:
                    self._desk.tell(name, NOW)
                    if self._desk.claim(name) is None:
                        cluster.cancel(name)
            for name in self._working:
                words = cluster.ended(name)
                if words is None and self._asked and self._desk.ended(name) is not None:
                    words = ""  # its worker may be gone before the cluster knows
                if words is not None:
                    return name, words
            if time.monotonic() > deadline:
                warn(f"{len(self._working)} jobs have not ended; the next start of the study waits for them")
                raise Interrupted(self._asked)
            time.sleep(POLL)

    def _settle(self, name: str, words: str, listener: Listener) -> None:
        """What came of a job that the cluster says has ended."""
        claim, ended = self._left(name, is_dead=bool(words))
        if claim is None:
            self._desk.forget(name)
            if not (self._asked or self._stop):
                raise Stop(CannotBegin(words or f"{name} has ended before it began"))
            return
        lost = "" if self._asked else lost_words(claim, ended, words)
        again = self._desk.take_back(name, listener, lost)
        if again is not None:
            self._again.append(again)

    def _left(self, name: str, *, is_dead: bool) -> tuple[Claim | None, Ended | None]:
        """What a job has left; a shared directory may show it only after a while."""
        deadline = time.monotonic() + (LATE if is_dead else SILENCE)
        while time.monotonic() < deadline and not self._asked:
            claim, ended = self._desk.claim(name), self._desk.ended(name)
            if ended is not None or (is_dead and claim is not None):
                return claim, ended
            time.sleep(POLL)
        return self._desk.claim(name), self._desk.ended(name)

    def _earlier(self, listener: Listener) -> None:
        """What an earlier start of the study has left: its jobs may have gone on without it."""
        for name in self._desk.names():
            claim = self._desk.claim(name)
            if claim is None:
                self._desk.forget(name)  # it cannot begin any more, as nothing is there for it to do
                continue
            self._await(name, claim)
            ended = self._desk.ended(name)
            again = self._desk.take_back(name, listener, lost_words(claim, ended, "") if ended is not None else "")
            if again is not None:
                self._again.append(again)

    def _await(self, name: str, claim: Claim) -> None:
        """Wait for the end of an earlier job, or until it gives no more sign of life."""
        beat, seen, said = self._desk.beat(name), time.monotonic(), False
        silence = SILENCE if _may_live(claim) else self._desk.silence
        while self._desk.ended(name) is None and time.monotonic() < seen + silence:
            if not said:
                say(f"{name}, a job of an earlier start of this study, may still be at work; waiting for its end")
                said = True
            now = self._desk.beat(name)
            if now != beat:
                beat, seen = now, time.monotonic()
            time.sleep(POLL)
            if self._asked:
                raise Interrupted(self._asked)

    def _abandon(self, cluster: Cluster) -> None:
        """Something went wrong, or jobs did not end: they are told, and the next start looks after them."""
        for name in self._working:
            self._desk.tell(name, NOW)
            cluster.cancel(name)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number


def _may_live(claim: Claim) -> bool:
    """Whether a job may go on; of another machine nobody knows."""
    return claim.host != os.uname().nodename or rundir.is_running(claim.process)


def _not_ignored() -> list[signal.Signals]:
    return [number for number in WATCHED if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup does
