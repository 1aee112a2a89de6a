"""Executes pairs by processes of this machine: one for each run, so that a crash costs one run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

import msgspec

from reprokit.core.errors import ReprokitError
from reprokit.run.environment import inherited
from reprokit.run.interruption import WATCHED, Interrupted
from reprokit.study import attempt as attempts
from reprokit.study.attempt import INTERRUPTED, PairTask, Task, lost
from reprokit.study.results import PairResult, RunResult
from reprokit.study.store import LOGS, name_of

# Starts the function `main` of a module with these paths, whatever directory a process is started in.
CODE: Final = "import sys; sys.path[:] = {path!r}; from {module} import main; sys.exit(main(sys.argv[1:]))"
GRACE: Final = 15.0  # seconds that runs have to end when something went wrong
MAX_LOG: Final = 1 << 20  # bytes that are kept of what a run printed, if it failed
MAX_LAST: Final = 300  # characters of its last line


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
        return msgspec.structs.replace(task, made=tuple(runs))
    pair = compared_pair or attempts.compared(task, *runs)
    listener.pair_ended(task, pair)
    attempts.tidy(task, pair)
    return None


class RunProcess:
    """A process that executes a run of a pair."""

    def __init__(self, pair: PairTask, place: Path) -> None:
        self.pair, task = pair, pair.second if pair.made else pair.first
        self.task: Task = task
        locks = [] if pair.lock is None else [pair.lock]
        self.is_told = False  # by a signal
        name = name_of(task.setup, task.pair, task.part)
        self._report = place / f"{name}.report.json"
        self._report.unlink(missing_ok=True)
        self._order = place / f"{name}.task.json"
        self._order.write_bytes(msgspec.json.encode(task))
        self.log = place / LOGS / f"{name}.log"
        code = CODE.format(path=[part for part in sys.path if part], module=attempts.__name__)
        words = [sys.executable, "-c", code, str(self._order), str(self._report), *map(str, locks)]
        # A session of its own: Ctrl-C comes from here, once, and nothing of it outlives it.
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=inherited(),
                pass_fds=locks,
                start_new_session=True,
            )

    def send(self, number: int) -> None:
        """Hand a signal to the run."""
        self.is_told = True
        with suppress(OSError):
            self.process.send_signal(number)

    def result(self, *, is_asked_to_end: bool) -> RunResult | None:
        """Return the result of the run; None if it was interrupted."""
        status = self.process.wait()
        with suppress(OSError):  # what the run has left running would take time from the next
            os.killpg(self.process.pid, signal.SIGKILL)
        report = attempts.read_report(self._report)
        self.tidy()
        if report.runs:
            return report.runs[0]
        return None if is_asked_to_end or status == INTERRUPTED else lost(self.task, self._words(status))

    def tidy(self) -> None:
        """Remove the task file and the report file of the process."""
        for file in (self._report, self._order):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _words(self, status: int) -> str:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = last_line(self.log) if status >= 0 else ""
        return f"the process that made it {how}" + (f": {last}" if last else "")


class Local:
    """Executes pairs by processes of this machine, several at a time if that is configured."""

    def __init__(self, directory: Path, parallel: int = 1, *, keep_logs: bool = False) -> None:
        self._directory, self._parallel, self._keep_logs = directory, parallel, keep_logs
        self._working: list[RunProcess] = []
        self._again: list[PairTask] = []  # whose second run is still to be made
        self._asked = 0
        self._stop: Stop | None = None

    def make(self, pairs: Iterator[PairTask], listener: PairListener) -> None:
        """Make the pairs, in their order, each taken from the iterator (which may raise Stop) only when its turn comes.

        A signal ends what is under way, and raises Interrupted then.
        """
        (self._directory / LOGS).mkdir(mode=0o700, exist_ok=True)
        watched = [number for number in WATCHED if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup does
        before = {number: signal.signal(number, self._interrupt) for number in watched}
        try:
            while self._begin_some(pairs, listener):
                self._settle(listener)
        finally:
            self._close()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._asked:
            raise Interrupted(self._asked)
        if self._stop is not None:
            raise self._stop

    def _begin_some(self, pairs: Iterator[PairTask], listener: PairListener) -> bool:
        """Begin as many pairs as may run at the same time; return whether any run is in progress."""
        while len(self._working) < self._parallel and not (self._asked or self._stop):
            try:
                task = self._again.pop(0) if self._again else next(pairs, None)
                if task is None:
                    break
                rest = continued(task, task.made, listener)
            except Stop as stop:
                self._stop = stop
                break
            if rest is not None:
                self._begin(rest)
        return bool(self._working)

    def _begin(self, pair: PairTask) -> None:
        """Begin the first or the second run of a pair."""
        new = RunProcess(pair, self._directory)
        self._working.append(new)
        if self._asked and not new.is_told:  # meanwhile
            new.send(self._asked)

    def _settle(self, listener: PairListener) -> None:
        """Wait until a run has ended, and report it."""
        ended = self._wait()
        self._working.remove(ended)
        result = ended.result(is_asked_to_end=bool(self._asked))
        if result is None:
            self._asked = self._asked or signal.SIGTERM  # somebody has ended the run itself
            return
        self._tidy_log(ended.log, result)
        try:
            listener.run_ended(result)
            rest = continued(ended.pair, (*ended.pair.made, result), listener)
        except Stop as stop:
            self._stop = self._stop or stop
        else:
            self._again += [rest] if rest is not None else []

    def _wait(self) -> RunProcess:
        """Return the process that has ended first."""
        if len(self._working) == 1:
            self._working[0].process.wait()
            return self._working[0]
        while True:
            for working in self._working:
                if working.process.poll() is not None:
                    return working
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Send the signal to the runs."""
        self._asked = number
        for working in self._working:
            working.send(number)

    def _tidy_log(self, log: Path, result: RunResult) -> None:
        """Remove the log of a run, unless it failed or all logs are kept."""
        if result.outcome == "finished" and not self._keep_logs:
            log.unlink(missing_ok=True)
        elif log.stat().st_size > MAX_LOG:
            with open(log, "r+b") as file:
                file.seek(-MAX_LOG, os.SEEK_END)
                end = file.read()
                file.seek(0)
                file.write(end)
                file.truncate()

    def _close(self) -> None:
        """End the runs in progress after an error."""
        deadline = time.monotonic() + GRACE
        for working in self._working:
            working.send(signal.SIGTERM)
        for working in self._working:
            with suppress(subprocess.TimeoutExpired):
                working.process.wait(max(0.0, deadline - time.monotonic()))
            with suppress(OSError):
                os.killpg(working.process.pid, signal.SIGKILL)
            working.process.wait()
            working.tidy()
        self._working.clear()


def last_line(log: Path) -> str:
    """Return the last line of a log."""
    with suppress(OSError), open(log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
        return next((line.strip()[:MAX_LAST] for line in reversed(lines) if line.strip()), "")
    return ""
