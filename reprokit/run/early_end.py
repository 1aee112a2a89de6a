"""Ends a run early: a profile has its steps, a question is answered, or a rule has raised an alarm.

The run is interrupted as by Ctrl-C, and killed if that does not help. An interrupted Python program exits through
its handlers, so that its agent writes its data. If the command is no Python program (a shell script,
mpirun), the topmost Python processes below it are interrupted as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from reprokit.core.errors import EXIT_IDENTICAL
from reprokit.run import agent_lines
from reprokit.run.process import GRACE, Child, ExitStatus
from reprokit.run.stragglers import has_stragglers, processes
from reprokit.run_files import rundir

MOMENT = 1.0  # seconds for helpers to end after the command
ENOUGH = "enough"  # file that exists once the run is to end: agents then do not report the interruption
STEPPED, ANSWERED = (
    "stepped",
    "answered",
)  # files with one byte per process: those that take steps, and those that have answered


class EarlyEnd:
    """Watches a run while its command runs, and ends it once there is a reason."""

    def __init__(
        self, run: Path, enough: Path, reason: Callable[[], str], patience: float = GRACE, status: int = EXIT_IDENTICAL
    ):
        self._run, self._enough, self._find_reason, self._patience = run, enough, reason, patience
        self._status = status  # exit status that an ended training gets
        self._signals_left = [signal.SIGKILL, signal.SIGTERM]  # sent from the last to the first
        self._deadline = 0.0
        self.reason = ""  # why the training was ended; empty if it ended by itself

    def __call__(self, child: Child) -> None:
        """Interrupt the child once there is a reason; send the whole run SIGTERM and SIGKILL if it does not end."""
        if not self.reason:
            self.reason = self._find_reason()
            if self.reason:
                self._deadline = time.monotonic() + self._patience
                _announce_end(self._enough)
                interrupt(self._run, child.pid)
        elif time.monotonic() > self._deadline and self._signals_left:
            self._deadline = time.monotonic() + GRACE
            send([child.pid, *processes(self._run)], self._signals_left.pop())

    def finish(self, exit_status: ExitStatus) -> ExitStatus:
        """End the run's remaining processes; return the exit status that counts."""
        if not self.reason:
            return exit_status
        if has_stragglers(self._run, MOMENT):
            interrupt(self._run)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not has_stragglers(self._run, GRACE):
                    break
                send(list(processes(self._run)), number)
        return ExitStatus(exit_code=self._status)


def once_answered(run: Path) -> EarlyEnd:
    """Return what ends a replay once all processes that take steps have taken those of its question."""
    answers = run / rundir.ANSWERS

    def reason() -> str:
        answered = _size(answers / ANSWERED)
        return "the steps of the question" if answered and answered >= _size(answers / STEPPED) else ""

    return EarlyEnd(run, answers / ENOUGH, reason)


def end(run: Path) -> None:
    """End a replay that was asked something, of which all is known that it can tell."""
    with open(run / rundir.ANSWERS / ANSWERED, "ab") as file:
        file.write(b".")


def is_ended(run: Path) -> bool:
    """Return whether a replay was ended so, or by the last step of its question."""
    return _size(run / rundir.ANSWERS / ANSWERED) > 0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _announce_end(enough: Path) -> None:
    """Create the file that keeps agents from reporting the interruption."""
    with suppress(OSError):
        os.close(os.open(enough, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def interrupt(run: Path, command: int = 0) -> None:
    """Send SIGINT to the command, and to the topmost Python processes if it is not one itself."""
    run_processes = set(processes(run))
    python_processes = agent_lines.read(run).pids & run_processes
    if command in python_processes:
        send([command], signal.SIGINT)
        return
    topmost = [pid for pid in python_processes if python_processes.isdisjoint(_ancestors(pid))]
    send([command, *topmost] if command else topmost, signal.SIGINT)


def send(pids: list[int], number: signal.Signals) -> None:
    """Send each process a signal, if it still runs; SIGTERM instead of SIGINT if it ignores interrupts."""
    for pid in dict.fromkeys(pids):
        signal_number = signal.SIGTERM if number == signal.SIGINT and _ignores_signal(pid, number) else number
        with suppress(OSError):
            os.kill(pid, signal_number)


def _ignores_signal(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal, as background jobs of shell scripts ignore SIGINT."""
    with suppress(OSError, ValueError):
        for line in Path("/proc", str(pid), "status").read_bytes().splitlines():
            if line.startswith(b"SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _ancestors(pid: int) -> set[int]:
    import psutil  # imported late: slow to load

    with suppress(psutil.Error):
        return {parent.pid for parent in psutil.Process(pid).parents()}
    return set()
