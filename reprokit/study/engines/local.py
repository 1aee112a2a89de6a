"""Executes pairs by processes of this machine: one for each run, so that a crash costs one run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from reprokit.run.environment import inherited
from reprokit.run.interruption import Interrupted
from reprokit.study import attempt as attempts
from reprokit.study.attempt import INTERRUPTED, PairTask, Task, lost
from reprokit.study.engines.engine import PairListener, continued
from reprokit.study.results import RunResult
from reprokit.study.store import LOGS, name_of

CODE: Final = (
    "import sys; sys.path[:] = {path!r}; from reprokit.study.attempt import main; sys.exit(main(sys.argv[1:]))"
)
GRACE: Final = 15.0  # seconds that runs have to end when something went wrong
MAX_LOG: Final = 1 << 20  # bytes that are kept of what a run printed, if it failed
MAX_LAST: Final = 300  # characters of its last line


class RunProcess:
    """A process that executes a run of a pair."""

    def __init__(self, pair: PairTask, task: Task, place: Path, locks: list[int], variables: Mapping[str, str]) -> None:
        self.pair, self.task = pair, task
        self.is_told = False  # by a signal
        name = name_of(task.setup, task.pair, task.part)
        self._report = place / f"{name}.report.json"
        self._report.unlink(missing_ok=True)
        self._order = place / f"{name}.task.json"
        self._order.write_bytes(msgspec.json.encode(task))
        self.log = place / LOGS / f"{name}.log"
        code = CODE.format(path=[part for part in sys.path if part])
        words = [sys.executable, "-c", code, str(self._order), str(self._report), *map(str, locks)]
        # A session of its own: Ctrl-C comes from here, once, and nothing of it outlives it.
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
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
    """Executes runs by processes of this machine, the two of a pair one after the other."""

    def __init__(
        self,
        directory: Path,
        lock: int | None = None,
        *,
        keep_logs: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._directory, self._keep_logs = directory, keep_logs
        self._locks = [] if lock is None else [lock]  # of the study, which its runs hold too
        self._variables = inherited() if variables is None else variables
        self._working: list[RunProcess] = []
        self._telling = threading.RLock()  # signal handlers and other threads interrupt
        self._asked = 0

    @property
    def busy(self) -> int:
        """The number of runs in progress."""
        return len(self._working)

    def open(self, _listener: PairListener) -> None:
        """Make the directory of logs; no process of an earlier start is left."""
        (self._directory / LOGS).mkdir(mode=0o700, exist_ok=True)

    def begin(self, pair: PairTask) -> None:
        """Begin the first or the second run of a pair."""
        task = pair.first if pair.made is None else pair.second
        new = RunProcess(pair, task, self._directory, self._locks, self._variables)
        with self._telling:
            self._working.append(new)
            if self._asked and not new.is_told:  # meanwhile
                new.send(self._asked)

    def settle(self, listener: PairListener) -> PairTask | None:
        """Wait until a run has ended, and report it."""
        ended = self._wait()
        self._working.remove(ended)
        result = ended.result(is_asked_to_end=bool(self._asked))
        if result is None:
            self._asked = self._asked or signal.SIGTERM  # somebody has ended the run itself
            raise Interrupted(self._asked)
        self._tidy_log(ended.log, result)
        listener.run_ended(result)
        recording = ended.pair.made
        return continued(ended.pair, [result] if recording is None else [recording, result], listener)

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

    def hold(self) -> None:
        """Let the runs in progress end; every one has begun."""

    def interrupt(self, number: int) -> None:
        """Send the signal to the runs."""
        with self._telling:
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

    def close(self) -> None:
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
