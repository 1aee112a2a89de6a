"""What the launcher does beside a profile run: bounds it, and watches its system calls.

Once enough was seen it is ended in good order: as Ctrl-C would, and by force where that does not help. An interrupted
Python program leaves by its handlers, so that its agent writes what it has seen. Where the command is no Python program
(a shell script, mpirun), the topmost Python processes beneath it are interrupted with it.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from reprokit import rundir
from reprokit.launch import agent_lines, system_calls
from reprokit.launch.command import Command
from reprokit.launch.messages import say
from reprokit.launch.process import GRACE, Child, Ended
from reprokit.launch.stragglers import PAUSE, processes
from reprokit.launch.system_calls import SystemCalls
from reprokit.model.run import ProfilingFacts
from reprokit.model.states import NOT_ASKED, ON

CAPTURED = "captured"  # in the run's profile directory: inputs of operators that agents wanted to execute again
STEPPING = "stepping"  # in the run's profile directory: a framework whose optimizers take steps was imported
STEPPED = "stepped"  # in the run's profile directory: one has taken a step
ENOUGH = "enough"  # in the run's profile directory: an agent has seen the steps that were asked for
MOMENT = 1.0  # seconds for helpers that end with the command
FIRST_STEP = 300.0  # seconds until the first step, in which a bound does not count
CONFIRMING = 300.0  # seconds for agents that execute at the end what they have kept


class Bound:
    """The bounds of one profile run, looked at while the command runs."""

    def __init__(self, run: Path, profiling: ProfilingFacts):
        self._run, self._profiling = run, profiling
        self._place = run / rundir.PROFILE
        self._enough = self._place / ENOUGH
        self._has_stepped = False
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
        if seconds is not None and self._lasted() >= seconds:
            return f"{seconds:g} seconds"
        return f"{steps} steps" if steps is not None and self._enough.exists() else ""

    def _lasted(self) -> float:
        """Return the seconds since the first step; since the start, where none is to be expected or comes."""
        lasted = time.monotonic() - self._began
        if self._has_stepped:
            return lasted
        if (self._place / STEPPED).exists():
            self._has_stepped, self._began = True, time.monotonic()
            return 0.0
        return lasted - (FIRST_STEP if (self._place / STEPPING).exists() else 0.0)

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


def _none_left(run: Path, patience: float) -> bool:
    """Return whether every process of the run ends within so many seconds."""
    deadline = time.monotonic() + patience
    while is_one := any(True for _ in processes(run)):
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE)
    return not is_one


def remove_captured(run: Path) -> None:
    """Remove the inputs that a killed process kept and has left: they are as large as the training's."""
    captured = run / rundir.PROFILE / CAPTURED
    if captured.is_dir() and not captured.is_symlink():
        import shutil  # takes long to load

        shutil.rmtree(captured, ignore_errors=True)


class Profiled:
    """One profile run, from before its start to its end."""

    def __init__(self, profiling: ProfilingFacts, place: Path):
        asked = profiling.system_calls
        found = system_calls.find(place / rundir.PROFILE) if asked.is_on else asked
        self._system_calls = found if isinstance(found, SystemCalls) else None
        self._bound = Bound(place, profiling)
        self.facts = msgspec.structs.replace(profiling, system_calls=ON if isinstance(found, SystemCalls) else found)

    def begin(self) -> Bound | None:
        """Return the bounds to look at while the command runs, from now on; None of a run that has none."""
        asked = self.facts.system_calls
        if not asked.is_on and asked.code != NOT_ASKED:
            say(f"system calls are not watched, the shim's own log is used: {asked.why}")
        self._bound.begin()
        return None if self.facts.steps is None and self.facts.seconds is None else self._bound

    @property
    def traces(self) -> bool:
        """Whether strace runs beside."""
        return self._system_calls is not None

    def wrap(self, command: Command, variables: dict[str, str]) -> tuple[Command, dict[str, str]]:
        """Return the command to start, and its variables."""
        return (command, variables) if self._system_calls is None else self._system_calls.wrap(command, variables)

    def end(self, ended: Ended) -> Ended:
        """Return how the run counts as ended: well, where it was ended at a bound, with all of its processes."""
        if not self._bound.reason:
            return ended
        self._bound.finish()
        say(f"the training was ended after {self._bound.reason}, as asked")
        self.facts = msgspec.structs.replace(self.facts, ended=self._bound.reason)
        return Ended(exit_code=0)

    def take_system_calls(self, run: Path) -> None:
        """Write down what strace saw, and remove what is left of it."""
        if self._system_calls is not None:
            rundir.write_json(run / rundir.SYSTEM_CALLS, self._system_calls.close(run))
