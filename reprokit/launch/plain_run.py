"""Runs a command without the shim: with the agent in it, which may take down what comes of it, or with nothing.

No entropy is recorded. Which files an observed or untouched command wrote is found by looking before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from reprokit.launch import environment
from reprokit.launch.changed_files import WatchedFiles
from reprokit.launch.environment import ChildEnvironment
from reprokit.launch.messages import say
from reprokit.launch.process import Child, Ended
from reprokit.launch.run import Prepared, Watch, say_captured
from reprokit.launch.rundirectory import NewRun, remove, shown
from reprokit.launch.short_paths import Placed
from reprokit.model.run import RunFile
from reprokit.model.states import not_loaded, off
from reprokit.plan import Plan

if TYPE_CHECKING:
    from reprokit.launch.finish import Finish
    from reprokit.launch.snapshots import Hook

NOTHING = off("nothing was recorded", "not-recorded")


class Unshimmed:
    """Runs a command with the agent alone, or as it is; its directory stays only where it holds something."""

    becomes_last = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._files: WatchedFiles | None = None

    def environment(self, variables: dict[str, str], new: NewRun, place: Placed) -> ChildEnvironment:
        """The user's variables with those that start the agent, unless nothing is to be in the command."""
        if self._plan.untouched:
            return ChildEnvironment(variables, environment.size_of(variables))
        return environment.build_plain(variables, new.place, place.bootstrap)

    def prepare(self, run: RunFile, _new: NewRun, _place: Placed) -> None:
        """Say that nothing is recorded."""
        run.key, run.supervisor = "", NOTHING
        run.shim = not_loaded("nothing was recorded", "not-recorded")
        run.trail = self._plan.trail if self._plan.observed else NOTHING

    def arm(self, prepared: Prepared) -> None:
        """Look at the files that are there."""
        plan = self._plan
        if plan.observed or plan.untouched:
            self._files = WatchedFiles(plan.working_directory, (prepared.path, *plan.aside))

    def start(self, prepared: Prepared) -> Child:
        """Start the command, its addresses as random as they are without reprokit."""
        return Child(prepared.command, self._plan.working_directory, prepared.environment.variables, randomized=True)

    def give_up(self, prepared: Prepared) -> None:
        """Leave nothing."""
        remove(prepared.path)

    def watches(self) -> Iterable[Watch | None]:
        """Nothing more than at every run."""
        return ()

    def finish(self, prepared: Prepared, ended: Ended, interrupted: Callable[[], bool], hook: Hook | None) -> Finish:
        """What gathers the run."""
        from reprokit.launch.finish import Finish

        return Finish(prepared.plan, prepared.path, prepared.run, ended, interrupted, hook, self._files)

    def leave(self, prepared: Prepared) -> None:
        """Say where the run is, or remove it; who has a step done again reads the result himself."""
        plan, run, path = prepared.plan, prepared.run, prepared.path
        if plan.capture is not None and plan.capture.redo is not None:
            return
        if plan.output is not None or run.snapshots:
            say(f"run: {shown(path)}")
        else:
            remove(path)
        say_captured(plan, path, run)
