"""Ends a profile run in good order once enough was seen: as Ctrl-C would, and by force where that does not help.

An interrupted Python program leaves by its handlers, so that its agent writes what it has seen. Where the command is
no Python program (a shell script, mpirun), the topmost Python processes beneath it are interrupted with it.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from reprokit import rundir
from reprokit.launch import agent_lines
from reprokit.launch.process import GRACE, Child
from reprokit.launch.stragglers import PAUSE, processes
from reprokit.plan import Profiling

ENOUGH = "enough"  # in the run's profile directory: an agent has seen the steps that were asked for
MOMENT = 1.0  # seconds for helpers that end with the command
CONFIRMING = 300.0  # seconds for agents that execute at the end what they have kept
MAX_DEPTH = 1000  # of a tree of processes


class Bound:
    """The bounds of one profile run, looked at while the command runs."""

    def __init__(self, run: Path, profiling: Profiling):
        self._run, self._profiling = run, profiling
        self._enough = run / rundir.PROFILE / ENOUGH
        self._began = float("inf")
        self._patience = CONFIRMING if profiling.confirm else GRACE
        self._force = [signal.SIGKILL, signal.SIGTERM]  # the next one last
        self._deadline = 0.0
        self.reason = ""  # why the training was ended; empty where it ended by itself

    def begin(self) -> None:
        """The command starts now."""
        self._began = time.monotonic()

    def __call__(self, child: Child) -> None:
        """End the child where a bound was reached, then its whole run, each time less politely."""
        if not self.reason:
            self.reason = self._reached()
            if self.reason:
                self._deadline = time.monotonic() + self._patience
                _tell_agents(self._enough)
                interrupt(self._run, child.pid)
        elif time.monotonic() > self._deadline and self._force:
            self._deadline = time.monotonic() + GRACE
            send([child.pid, *processes(self._run)], self._force.pop())

    def _reached(self) -> str:
        steps, seconds = self._profiling.steps, self._profiling.seconds
        if seconds is not None and time.monotonic() - self._began >= seconds:
            return f"{seconds:g} seconds"
        return f"{steps} steps" if steps is not None and self._enough.exists() else ""

    def finish(self) -> None:
        """Once the command has ended by it: end what else of the run goes on."""
        if not self.reason or _none_left(self._run, MOMENT):
            return
        interrupt(self._run)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if _none_left(self._run, GRACE):
                return
            send(list(processes(self._run)), number)


def _tell_agents(enough: Path) -> None:
    """Agents that find the file keep quiet about the interruption."""
    with suppress(OSError):
        os.close(os.open(enough, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def interrupt(run: Path, command: int = 0) -> None:
    """SIGINT for the command, and for the topmost Python processes where it is none itself."""
    alive = set(processes(run))
    observed = agent_lines.pids(run) & alive
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
    """Whether a process ignores a signal, as those do that a script has put in the background."""
    with suppress(OSError, ValueError):
        for line in Path("/proc", str(pid), "status").read_bytes().splitlines():
            if line.startswith(b"SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    for _ in range(MAX_DEPTH):
        pid = _parent(pid)
        if pid <= 1 or pid in found:
            break
        found.add(pid)
    return found


def _parent(pid: int) -> int:
    """The process's parent; the name before it in the file may hold blanks and brackets."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def _none_left(run: Path, patience: float) -> bool:
    """Whether every process of the run ends within so many seconds."""
    deadline = time.monotonic() + patience
    while is_one := any(True for _ in processes(run)):
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE)
    return not is_one
