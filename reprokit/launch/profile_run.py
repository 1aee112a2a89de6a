"""What the launcher does beside a profile run: bounds it, and watches its system calls."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reprokit import rundir
from reprokit.launch import system_calls
from reprokit.launch.command import Command
from reprokit.launch.messages import say
from reprokit.launch.process import Ended
from reprokit.launch.profile_limits import Bound
from reprokit.launch.system_calls import SystemCalls
from reprokit.model.run import ProfilingFacts
from reprokit.model.states import NOT_ASKED, ON, WITHOUT_SYSTEM_CALLS
from reprokit.plan import Profiling

CAPTURED = "captured"  # in the run's profile directory: inputs of operators that agents wanted to execute again


def remove_captured(run: Path) -> None:
    """Remove the inputs that a killed process kept and has left: they are as large as the training's."""
    captured = run / rundir.PROFILE / CAPTURED
    if captured.is_dir() and not captured.is_symlink():
        import shutil  # takes long to load

        shutil.rmtree(captured, ignore_errors=True)


class Profiled:
    """One profile run, from before its start to its end."""

    def __init__(self, profiling: Profiling, place: Path):
        found = system_calls.find(place / rundir.PROFILE) if profiling.system_calls else WITHOUT_SYSTEM_CALLS
        self._system_calls = found if isinstance(found, SystemCalls) else None
        self._bound = Bound(place, profiling)
        self.facts = ProfilingFacts(
            functions=profiling.functions,
            operators=profiling.operators,
            system_calls=ON if isinstance(found, SystemCalls) else found,
            steps=profiling.steps,
            seconds=profiling.seconds,
            confirm=profiling.confirm,
        )

    def begin(self) -> Bound | None:
        """The bounds to look at while the command runs, from now on; None of a run that has none."""
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
        """The command to start, and its variables."""
        return (command, variables) if self._system_calls is None else self._system_calls.wrap(command, variables)

    def end(self, ended: Ended) -> Ended:
        """How the run counts as ended: well, where it was ended at a bound, with all of its processes."""
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
