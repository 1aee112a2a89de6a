"""Runs beside a profile run: ends it at its bounds, and watches its system calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from reprokit.core.messages import say
from reprokit.model.plan import Plan
from reprokit.model.run import ProfilingFacts
from reprokit.model.states import NOT_ASKED, ON
from reprokit.run import environment, system_calls
from reprokit.run.command import Command
from reprokit.run.early_end import ENOUGH, STEPPED, EarlyEnd
from reprokit.run.part import Closing, Launch, Preparation, RunPart, Watch
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


def _remove_captured(run: Path) -> None:
    """Remove the inputs that a killed process has left: they can be as large as the training's memory."""
    captured = run / rundir.PROFILE / CAPTURED
    if captured.is_dir() and not captured.is_symlink():
        import shutil  # imported late: slow to load

        shutil.rmtree(captured, ignore_errors=True)


class ProfiledRun(RunPart):
    """One profile run: what it traces, and what ends it at its bounds."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        assert plan.profiling is not None
        self._facts = plan.profiling
        self._system_calls: SystemCalls | None = None

    def variables(self, _command: Command, variables: dict[str, str]) -> dict[str, str]:
        return environment.without_leak_search(variables) if self._facts.system_calls.is_on else variables

    def prepare(self, preparation: Preparation) -> None:
        (preparation.new_run.path / rundir.PROFILE).mkdir(mode=0o700)
        run, asked = preparation.new_run.place, self._facts.system_calls
        found = system_calls.find(run / rundir.PROFILE) if asked.is_on else asked
        self._system_calls = found if isinstance(found, SystemCalls) else None
        state = ON if isinstance(found, SystemCalls) else found
        self._facts = preparation.run.profiling = msgspec.structs.replace(self._facts, system_calls=state)
        self._bounds = ProfileBounds(run, self._facts)
        patience = CONFIRMING if self._facts.confirm else GRACE
        self._early_end = EarlyEnd(run, run / rundir.PROFILE / ENOUGH, self._bounds.reached, patience)

    def arm(self, launch: Launch) -> None:
        state = self._facts.system_calls
        if not state.is_on and state.code != NOT_ASKED:
            say(f"system calls are not watched, the shim's own log is used: {state.why}")
        if self._system_calls is not None:
            launch.executed, launch.variables = self._system_calls.wrap(launch.executed, launch.variables)
            launch.is_traced = True
        self._bounds.begin()

    def watches(self) -> Iterable[Watch]:
        return () if self._facts.steps is None and self._facts.seconds is None else (self._early_end,)

    def stop(self, ended: ExitStatus) -> ExitStatus:
        reason = self._early_end.reason
        if reason:
            ended = self._early_end.finish(ended)
            say(f"the training was ended after {reason}, as asked")
            self._facts = msgspec.structs.replace(self._facts, ended=reason)
        return ended

    def finish(self, closing: Closing) -> None:
        closing.run.profiling = self._facts
        if self._system_calls is not None:
            rundir.write_json(closing.path / rundir.SYSTEM_CALLS, self._system_calls.close(closing.path))
        if not closing.goes_on:
            _remove_captured(closing.path)


PART = ProfiledRun
