"""Executes pairs on other machines: each is a job of a cluster, whose results the desk collects."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

from reprokit.core.errors import CannotBegin
from reprokit.run.interruption import Interrupted
from reprokit.run.messages import say, warn
from reprokit.run_files import rundir
from reprokit.study.attempt import PairTask
from reprokit.study.engines.engine import PairListener, Stop
from reprokit.study.engines.tasks import Desk, lost_words
from reprokit.study.engines.worker import NOW, UNLESS_BEGUN, Claim, JobEnd

POLL: Final = 0.2  # seconds between two looks at what is under way
GRACE: Final = 60.0  # seconds that jobs have to end when the study is interrupted
SILENCE: Final = 30.0  # seconds without a sign of life after which an earlier job is none any more
LATE: Final = 2.0  # seconds by which what a job that died has left may come to be seen


class Cluster(Protocol):
    """An interface to a cluster that runs jobs."""

    def submit(self, place: str, name: str) -> None:
        """Submit a job that calls `worker.work` with these arguments once."""

    def ended(self, name: str) -> str | None:
        """Return in words how a job has ended; None while it waits or runs."""

    def cancel(self, name: str) -> None:
        """Cancel a job."""

    def close(self) -> None:
        """Disconnect."""


class Jobs:
    """Executes pairs as jobs of a cluster; a worker that dies costs one run."""

    def __init__(self, desk: Desk, cluster: Callable[[], Cluster]) -> None:
        self._desk, self._opened = desk, cluster
        self._cluster: Cluster | None = None
        self._working: list[str] = []
        self._asked, self._deadline = 0, math.inf
        self._is_held = False

    @property
    def busy(self) -> int:
        """The number of jobs that are queued or running."""
        return len(self._working)

    def open(self, listener: PairListener) -> None:
        """Connect to the cluster, and collect the results of jobs of an earlier start, which may have gone on."""
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
        """Wait until a job has ended, and collect its results."""
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
        """Return the job that has ended first, and how; a job that ignores a cancellation for too long is abandoned."""
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
        """Keep queued jobs from beginning."""
        if not self._is_held:
            self._is_held = True
            for name in self._working:
                self._desk.tell(name, UNLESS_BEGUN)

    def interrupt(self, number: int) -> None:
        """Cancel all jobs when they are polled next."""
        self._asked = number

    def close(self) -> None:
        """Cancel the running jobs and disconnect; the next start collects their results."""
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
        """Return the end report of a job; a shared directory may show it with a delay."""
        self._await(name, LATE if is_dead else SILENCE, is_dead=is_dead)
        return self._desk.claim(name), self._desk.ended(name)

    def _await_earlier(self, name: str, claim: Claim) -> None:
        """Wait until an earlier job has ended, or its heartbeats have stopped."""
        if self._desk.ended(name) is None:
            say(f"{name}, a job of an earlier start of this study, may still be at work; waiting for its end")
        may_live = claim.host != os.uname().nodename or rundir.is_running(claim.process)
        self._await(name, SILENCE if may_live else self._desk.silence)
        if self._asked:
            raise Interrupted(self._asked)

    def _await(self, name: str, silence: float, *, is_dead: bool = False) -> None:
        """Wait until a job has ended while it sends heartbeats; for a dead one, until its claim is known."""
        beat, seen = self._desk.beat(name), time.monotonic()
        while self._desk.ended(name) is None and time.monotonic() < seen + silence and not self._asked:
            if is_dead and self._desk.claim(name) is not None:
                break
            time.sleep(POLL)
            now = self._desk.beat(name)
            if now != beat:
                beat, seen = now, time.monotonic()
