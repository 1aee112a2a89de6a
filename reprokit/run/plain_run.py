"""Runs a command without the shim: with the agent, which may record metrics, or with nothing added.

No entropy is recorded. The files that the command wrote are those that changed meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from reprokit.model.plan import Plan
from reprokit.model.run import RunFile
from reprokit.model.states import not_loaded, off
from reprokit.run import environment
from reprokit.run.environment import ChildEnvironment, PreloadPaths
from reprokit.run.messages import say
from reprokit.run.process import Child, ExitStatus
from reprokit.run.run import PreparedRun, Watch, say_captured
from reprokit.run.rundirectory import NewRun, remove, shown
from reprokit.run_files import rundir

if TYPE_CHECKING:
    from reprokit.run.finish import Finish, RunCompanion

NOTHING = off("nothing was recorded", "not-recorded")


class UnshimmedRun:
    """Runs a command with the agent alone or unchanged; keeps the run directory only if it is of use."""

    becomes_last = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def environment(self, variables: dict[str, str], new_run: NewRun, paths: PreloadPaths) -> ChildEnvironment:
        """Return the user's variables with those that start the agent, unless the command runs unchanged."""
        if self._plan.untouched:
            return ChildEnvironment(variables, environment.size_of(variables))
        return environment.build_plain(variables, new_run.place, paths.bootstrap)

    def prepare(self, run: RunFile, _new_run: NewRun, _paths: PreloadPaths) -> None:
        """State in run.json that nothing is recorded."""
        run.key, run.supervisor = "", NOTHING
        run.shim = not_loaded("nothing was recorded", "not-recorded")
        run.trail = self._plan.trail if self._plan.observed else NOTHING

    def arm(self, prepared: PreparedRun) -> None:
        """Do nothing: no supervisor is needed."""

    def start(self, prepared: PreparedRun) -> Child:
        """Start the command with the address randomization that it would have without reprokit."""
        return Child(prepared.command, self._plan.working_directory, prepared.environment.variables, randomized=True)

    def give_up(self, prepared: PreparedRun) -> None:
        """Remove the run directory, as its command could not be started."""
        remove(prepared.path)

    def watches(self) -> Iterable[Watch | None]:
        """Return no further watches."""
        return ()

    def finish(
        self,
        prepared: PreparedRun,
        exit_status: ExitStatus,
        interrupted: Callable[[], bool],
        companions: Sequence[RunCompanion],
    ) -> Finish:
        """Return what closes the run."""
        from reprokit.run.finish import Finish

        plan = prepared.plan
        return Finish(
            plan,
            prepared.path,
            prepared.run,
            exit_status,
            interrupted,
            companions,
            has_outputs=plan.observed or plan.untouched,
        )

    def leave(self, prepared: PreparedRun) -> None:
        """Report where the run is, or remove it; the caller of a re-executed step reads its result."""
        plan, run, path = prepared.plan, prepared.run, prepared.path
        if plan.capture is not None and plan.capture.redo is not None:
            return
        if plan.output is not None or run.snapshots or os.path.isdir(path / rundir.TENSORS):
            say(f"run: {shown(path)}")
        else:
            remove(path)
        say_captured(plan, path, run)
