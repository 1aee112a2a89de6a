"""Pairs made by other machines: each is a job of its own, which a cluster is given and the desk takes back."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

from reprokit import rundir
from reprokit.errors import CannotBegin
from reprokit.launch.interruption import Interrupted
from reprokit.launch.messages import say, warn
from reprokit.study.attempt import PairTask
from reprokit.study.engines.engine import PairListener, Stop
from reprokit.study.engines.tasks import Desk, lost_words
from reprokit.study.engines.worker import NOW, UNLESS_BEGUN, Claim, JobEnd

POLL: Final = 0.2  # seconds between two looks at what is under way
GRACE: Final = 60.0  # seconds that jobs have to end when the study is interrupted
SILENCE: Final = 30.0  # seconds without a sign of life after which an earlier job is none any more
LATE: Final = 2.0  # seconds by which what a job that died has left may come to be seen


class Cluster(Protocol):
    """What runs jobs somewhere."""

    def submit(self, place: str, name: str) -> None:
        """Call `worker.work` with these, once."""

    def ended(self, name: str) -> str | None:
        """Return how a job has ended, in words; None as long as it waits or goes on."""

    def cancel(self, name: str) -> None:
        """A job is of no more use."""

    def close(self) -> None:
        """Nothing more is asked for."""


class Jobs:
    """Makes pairs by a cluster; a worker that dies costs one run."""

    def __init__(self, desk: Desk, cluster: Callable[[], Cluster]) -> None:
        self._desk, self._opened = desk, cluster
        self._cluster: Cluster | None = None
        self._working: list[str] = []
        self._asked, self._deadline = 0, math.inf
        self._is_held = False

    @property
    def busy(self) -> int:
        """How many jobs are queued or at work."""
        return len(self._working)

    def open(self, listener: PairListener) -> None:
        """Connect to the cluster, and take back what an earlier start has left: its jobs may have gone on."""
        self._cluster = self._opened()
        for name in self._desk.names():
            claim = self._desk.claim(name)
            if claim is None:
                self._desk.forget(name)  # it cannot begin any more, as nothing is there for it to do
                continue
            self._await_earlier(name, claim)
            ended = self._desk.ended(name)
            self._desk.take_back(name, listener, lost_words(claim, ended, "") if ended is not None else "")

    def begin(self, pair: PairTask) -> None:
        """Submit a job."""
        assert self._cluster is not None
        name = self._desk.hand_out(pair)
        self._working.append(name)
        self._cluster.submit(self._desk.place, name)

    def settle(self, listener: PairListener) -> PairTask | None:
        """Wait until a job has ended, and take back what came of it."""
        name, words = self._wait()
        self._working.remove(name)
        claim, ended = self._left(name, is_dead=bool(words))
        if claim is not None:
            return self._desk.take_back(name, listener, "" if self._asked else lost_words(claim, ended, words))
        self._desk.forget(name)
        if not (self._asked or self._is_held):
            raise Stop(CannotBegin(words or f"{name} has ended before it began"))
        return None

    def _wait(self) -> tuple[str, str]:
        """The job that has ended first, and how; what does not end in time when it is asked to is left to itself."""
        while True:
            if self._asked and self._deadline == math.inf:
                self._deadline = time.monotonic() + GRACE
                self._tell_to_end()
            for name in self._working:
                words = self._how_ended(name)
                if words is not None:
                    return name, words
            if time.monotonic() > self._deadline:
                warn(f"{len(self._working)} jobs have not ended; the next start of the study waits for them")
                self._end_all()
                raise Interrupted(self._asked)
            time.sleep(POLL)

    def _how_ended(self, name: str) -> str | None:
        assert self._cluster is not None
        words = self._cluster.ended(name)
        if words is None and self._asked and self._desk.ended(name) is not None:
            return ""  # its worker may be gone before the cluster knows
        return words

    def _tell_to_end(self) -> None:
        assert self._cluster is not None
        for name in self._working:
            self._desk.tell(name, NOW)
            if self._desk.claim(name) is None:
                self._cluster.cancel(name)

    def hold(self) -> None:
        """Keep jobs that wait from beginning."""
        if not self._is_held:
            self._is_held = True
            for name in self._working:
                self._desk.tell(name, UNLESS_BEGUN)

    def interrupt(self, number: int) -> None:
        """End all jobs, at the next look at them."""
        self._asked = number

    def close(self) -> None:
        """Leave the cluster. Jobs that go on are told to end, and the next start looks after them."""
        self._end_all()
        if self._cluster is not None:
            self._cluster.close()

    def _end_all(self) -> None:
        for name in self._working:
            self._desk.tell(name, NOW)
            if self._cluster is not None:
                self._cluster.cancel(name)
        self._working.clear()

    def _left(self, name: str, *, is_dead: bool) -> tuple[Claim | None, JobEnd | None]:
        """Return what a job has left; a shared directory may show it only after a while."""
        self._await(name, LATE if is_dead else SILENCE, is_dead=is_dead)
        return self._desk.claim(name), self._desk.ended(name)

    def _await_earlier(self, name: str, claim: Claim) -> None:
        """Wait for the end of an earlier job, or until it gives no more sign of life."""
        if self._desk.ended(name) is None:
            say(f"{name}, a job of an earlier start of this study, may still be at work; waiting for its end")
        may_live = claim.host != os.uname().nodename or rundir.is_running(claim.process)
        self._await(name, SILENCE if may_live else self._desk.silence)
        if self._asked:
            raise Interrupted(self._asked)

    def _await(self, name: str, silence: float, *, is_dead: bool = False) -> None:
        """Wait for the end of a job, of a dead one for its claim, as long as there are signs of life."""
        beat, seen = self._desk.beat(name), time.monotonic()
        while self._desk.ended(name) is None and time.monotonic() < seen + silence and not self._asked:
            if is_dead and self._desk.claim(name) is not None:
                break
            time.sleep(POLL)
            now = self._desk.beat(name)
            if now != beat:
                beat, seen = now, time.monotonic()
