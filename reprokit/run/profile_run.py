"""Runs beside a profile run: ends it at its bounds, and watches its system calls."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from reprokit.model.run import ProfilingFacts
from reprokit.model.states import NOT_ASKED, ON
from reprokit.run import system_calls
from reprokit.run.command import Command
from reprokit.run.early_end import ENOUGH, STEPPED, EarlyEnd
from reprokit.run.messages import say
from reprokit.run.process import GRACE, ExitStatus
from reprokit.run.system_calls import SystemCalls
from reprokit.run_files import rundir

CAPTURED = "captured"  # in the run's profile directory: inputs of operators that agents re-execute
STEPPING = "stepping"  # in the run's profile directory: exists once a framework with optimizers was imported
FIRST_STEP = 300.0  # seconds that may pass until the first step before bounds count
CONFIRMING = 300.0  # seconds for agents to re-execute operators at the end


class ProfileBounds:
    """The bounds of one profile run, checked while the command runs."""

    def __init__(self, run: Path, profiling: ProfilingFacts):
        self._profiling = profiling
        self._place = run / rundir.PROFILE
        self._enough = self._place / ENOUGH
        self._has_stepped = False
        self._start_time = float("inf")

    def begin(self) -> None:
        """Note the start of the command."""
        self._start_time = time.monotonic()

    def reached(self) -> str:
        """Return the bound that was reached, in words; empty if none was."""
        steps, seconds = self._profiling.steps, self._profiling.seconds
        if seconds is not None and self._elapsed() >= seconds:
            return f"{seconds:g} seconds"
        return f"{steps} steps" if steps is not None and self._enough.exists() else ""

    def _elapsed(self) -> float:
        """Return the seconds since the first step; since the start if no step is expected or none comes."""
        elapsed = time.monotonic() - self._start_time
        if self._has_stepped:
            return elapsed
        if (self._place / STEPPED).exists():
            self._has_stepped, self._start_time = True, time.monotonic()
            return 0.0
        return elapsed - (FIRST_STEP if (self._place / STEPPING).exists() else 0.0)


def remove_captured(run: Path) -> None:
    """Remove the inputs that a killed process has left: they can be as large as the training's memory."""
    captured = run / rundir.PROFILE / CAPTURED
    if captured.is_dir() and not captured.is_symlink():
        import shutil  # imported late: slow to load

        shutil.rmtree(captured, ignore_errors=True)


class ProfiledRun:
    """One profile run, from its preparation to its end."""

    def __init__(self, profiling: ProfilingFacts, run_directory: Path):
        requested = profiling.system_calls
        calls_or_reason = system_calls.find(run_directory / rundir.PROFILE) if requested.is_on else requested
        self._system_calls = calls_or_reason if isinstance(calls_or_reason, SystemCalls) else None
        self._bound = ProfileBounds(run_directory, profiling)
        patience = CONFIRMING if profiling.confirm else GRACE
        self._early_end = EarlyEnd(
            run_directory, run_directory / rundir.PROFILE / ENOUGH, self._bound.reached, patience
        )
        self.facts = msgspec.structs.replace(
            profiling, system_calls=ON if isinstance(calls_or_reason, SystemCalls) else calls_or_reason
        )

    def begin(self) -> EarlyEnd | None:
        """Start the bounds; return what ends the run at them, None if it has none."""
        state = self.facts.system_calls
        if not state.is_on and state.code != NOT_ASKED:
            say(f"system calls are not watched, the shim's own log is used: {state.why}")
        self._bound.begin()
        return None if self.facts.steps is None and self.facts.seconds is None else self._early_end

    @property
    def traces(self) -> bool:
        """Return whether strace traces the command."""
        return self._system_calls is not None

    def wrap(self, command: Command, variables: dict[str, str]) -> tuple[Command, dict[str, str]]:
        """Return the command to start and its variables."""
        return (command, variables) if self._system_calls is None else self._system_calls.wrap(command, variables)

    def end(self, exit_status: ExitStatus) -> ExitStatus:
        """Return the exit status that counts: success if a bound ended the run, with all of its processes."""
        reason = self._early_end.reason
        if reason:
            exit_status = self._early_end.finish(exit_status)
            say(f"the training was ended after {reason}, as asked")
            self.facts = msgspec.structs.replace(self.facts, ended=reason)
        return exit_status

    def take_system_calls(self, run: Path) -> None:
        """Write the system calls to the run directory, and remove the trace."""
        if self._system_calls is not None:
            rundir.write_json(run / rundir.SYSTEM_CALLS, self._system_calls.close(run))
