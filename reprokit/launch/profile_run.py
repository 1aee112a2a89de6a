"""What the launcher does beside a profile run: says when it has seen enough, and watches its system calls."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from reprokit import rundir
from reprokit.launch import system_calls
from reprokit.launch.command import Command
from reprokit.launch.early_end import ENOUGH, STEPPED, EarlyEnd
from reprokit.launch.messages import say
from reprokit.launch.process import GRACE, ExitStatus
from reprokit.launch.system_calls import SystemCalls
from reprokit.model.run import ProfilingFacts
from reprokit.model.states import NOT_ASKED, ON

CAPTURED = "captured"  # in the run's profile directory: inputs of operators that agents wanted to execute again
STEPPING = "stepping"  # in the run's profile directory: a framework whose optimizers take steps was imported
FIRST_STEP = 300.0  # seconds until the first step, in which a bound does not count
CONFIRMING = 300.0  # seconds for agents that execute at the end what they have kept


class ProfileBounds:
    """The bounds of one profile run, looked at while the command runs."""

    def __init__(self, run: Path, profiling: ProfilingFacts):
        self._profiling = profiling
        self._place = run / rundir.PROFILE
        self._enough = self._place / ENOUGH
        self._has_stepped = False
        self._began = float("inf")

    def begin(self) -> None:
        """The command starts now."""
        self._began = time.monotonic()

    def reached(self) -> str:
        """Return which bound was reached, in words, if one was."""
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


def remove_captured(run: Path) -> None:
    """Remove the inputs that a killed process kept and has left: they are as large as the training's."""
    captured = run / rundir.PROFILE / CAPTURED
    if captured.is_dir() and not captured.is_symlink():
        import shutil  # takes long to load

        shutil.rmtree(captured, ignore_errors=True)


class ProfiledRun:
    """One profile run, from before its start to its end."""

    def __init__(self, profiling: ProfilingFacts, place: Path):
        asked = profiling.system_calls
        found = system_calls.find(place / rundir.PROFILE) if asked.is_on else asked
        self._system_calls = found if isinstance(found, SystemCalls) else None
        self._bound = ProfileBounds(place, profiling)
        patience = CONFIRMING if profiling.confirm else GRACE
        self._early_end = EarlyEnd(place, place / rundir.PROFILE / ENOUGH, self._bound.reached, patience)
        self.facts = msgspec.structs.replace(profiling, system_calls=ON if isinstance(found, SystemCalls) else found)

    def begin(self) -> EarlyEnd | None:
        """Return what ends the run at its bounds, which count from now on; None of a run that has none."""
        asked = self.facts.system_calls
        if not asked.is_on and asked.code != NOT_ASKED:
            say(f"system calls are not watched, the shim's own log is used: {asked.why}")
        self._bound.begin()
        return None if self.facts.steps is None and self.facts.seconds is None else self._early_end

    @property
    def traces(self) -> bool:
        """Whether strace runs beside."""
        return self._system_calls is not None

    def wrap(self, command: Command, variables: dict[str, str]) -> tuple[Command, dict[str, str]]:
        """Return the command to start, and its variables."""
        return (command, variables) if self._system_calls is None else self._system_calls.wrap(command, variables)

    def end(self, ended: ExitStatus) -> ExitStatus:
        """Return how the run counts as ended: well, where it was ended at a bound, with all of its processes."""
        reason = self._early_end.reason
        if reason:
            ended = self._early_end.finish(ended)
            say(f"the training was ended after {reason}, as asked")
            self.facts = msgspec.structs.replace(self.facts, ended=reason)
        return ended

    def take_system_calls(self, run: Path) -> None:
        """Write down what strace saw, and remove what is left of it."""
        if self._system_calls is not None:
            rundir.write_json(run / rundir.SYSTEM_CALLS, self._system_calls.close(run))
