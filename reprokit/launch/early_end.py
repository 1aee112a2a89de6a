"""Ends a run in good order: a profile has its steps, a question is answered, or a rule has raised an alarm.

It is interrupted as by Ctrl-C, and ended by force where that does not help. An interrupted Python program leaves by
its handlers, so that its agent writes what it has seen. Where the command is no Python program (a shell script,
mpirun), the topmost Python processes beneath it are interrupted with it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from reprokit import rundir
from reprokit.errors import EXIT_IDENTICAL
from reprokit.launch import agent_lines
from reprokit.launch.process import GRACE, Child, ExitStatus
from reprokit.launch.stragglers import has_stragglers, processes

MOMENT = 1.0  # seconds for helpers that end with the command
ENOUGH = "enough"  # beside what agents write: there once the run is to end; they keep quiet about the interruption
STEPPED, ANSWERED = "stepped", "answered"  # in a run's answers: a byte of each process that has steps, and their last


class EarlyEnd:
    """Watches a run while its command goes on, and ends it once there is a reason to."""

    def __init__(
        self, run: Path, enough: Path, reason: Callable[[], str], patience: float = GRACE, status: int = EXIT_IDENTICAL
    ):
        self._run, self._enough, self._reason_now, self._patience = run, enough, reason, patience
        self._status = status  # that the training counts as ended with
        self._force = [signal.SIGKILL, signal.SIGTERM]  # the next one last
        self._deadline = 0.0
        self.reason = ""  # why the training was ended; empty where it ended by itself

    def __call__(self, child: Child) -> None:
        """End the child where there is a reason, then its whole run, each time less politely."""
        if not self.reason:
            self.reason = self._reason_now()
            if self.reason:
                self._deadline = time.monotonic() + self._patience
                _tell_agents(self._enough)
                interrupt(self._run, child.pid)
        elif time.monotonic() > self._deadline and self._force:
            self._deadline = time.monotonic() + GRACE
            send([child.pid, *processes(self._run)], self._force.pop())

    def finish(self, ended: ExitStatus) -> ExitStatus:
        """End what else of the run goes on; return how it counts as ended."""
        if not self.reason:
            return ended
        if has_stragglers(self._run, MOMENT):
            interrupt(self._run)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not has_stragglers(self._run, GRACE):
                    break
                send(list(processes(self._run)), number)
        return ExitStatus(exit_code=self._status)


def once_answered(run: Path) -> EarlyEnd:
    """End a replay that was asked something once each process that takes steps has taken those of the question."""
    answers = run / rundir.ANSWERS

    def reason() -> str:
        answered = _size(answers / ANSWERED)
        return "the steps of the question" if answered and answered >= _size(answers / STEPPED) else ""

    return EarlyEnd(run, answers / ENOUGH, reason)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _tell_agents(enough: Path) -> None:
    """Agents that find the file keep quiet about the interruption."""
    with suppress(OSError):
        os.close(os.open(enough, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def interrupt(run: Path, command: int = 0) -> None:
    """SIGINT for the command, and for the topmost Python processes where it is none itself."""
    alive = set(processes(run))
    observed = agent_lines.read(run).pids & alive
    if command in observed:
        send([command], signal.SIGINT)
        return
    topmost = [pid for pid in observed if observed.isdisjoint(_ancestors(pid))]
    send([command, *topmost] if command else topmost, signal.SIGINT)


def send(pids: list[int], number: signal.Signals) -> None:
    """A signal for each, which may have ended already; one that ignores interrupts is asked to terminate."""
    for pid in dict.fromkeys(pids):
        chosen = signal.SIGTERM if number == signal.SIGINT and _ignores(pid, number) else number
        with suppress(OSError):
            os.kill(pid, chosen)


def _ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal, as those do that a script has put in the background."""
    with suppress(OSError, ValueError):
        for line in Path("/proc", str(pid), "status").read_bytes().splitlines():
            if line.startswith(b"SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _ancestors(pid: int) -> set[int]:
    import psutil  # takes long to load

    with suppress(psutil.Error):
        return {parent.pid for parent in psutil.Process(pid).parents()}
    return set()
