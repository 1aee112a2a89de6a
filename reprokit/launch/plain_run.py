"""Runs a command without the shim: with the agent in it, which may take down what comes of it, or with nothing.

No entropy is recorded. Which files an observed or untouched command wrote is found by looking before and after.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from reprokit import names, rundir
from reprokit.launch import environment
from reprokit.launch.environment import ChildEnvironment, PreloadPaths
from reprokit.launch.messages import say
from reprokit.launch.process import Child, ExitStatus
from reprokit.launch.run import PreparedRun, Watch, say_captured
from reprokit.launch.rundirectory import NewRun, remove, shown
from reprokit.model.run import RunFile
from reprokit.model.states import not_loaded, off
from reprokit.names import NOISE, NOISE_SUFFIXES
from reprokit.plan import Plan

if TYPE_CHECKING:
    from reprokit.launch.finish import Finish, RunCompanion

NOTHING = off("nothing was recorded", "not-recorded")
OWN = ((rundir.RUN, rundir.AGENT_PLAN), ("study.json", "results.jsonl"))  # what runs and studies of others hold
MAX_FILES = 100_000  # below the directory

State = tuple[int, int, int, int]  # of a file: size, both times, number


class WatchedFiles:
    """The files below a directory as they are before the command starts."""

    def __init__(self, directory: Path, aside: tuple[Path, ...]):
        self._directory = os.path.realpath(directory)
        self._aside = frozenset(os.path.realpath(path) for path in aside)
        self._before = self._states()

    @property
    def is_complete(self) -> bool:
        """Whether all files are known."""
        return len(self._before) < MAX_FILES

    def write(self, run: Path) -> None:
        """Note in the run directory what is new or changed, as the shim does."""
        if not self.is_complete:
            return
        changed = [path for path, state in self._states().items() if self._before.get(path) != state]
        lines = b"".join(_line(path) for path in sorted(changed))
        descriptor = os.open(run / rundir.WRITTEN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(lines)

    def _states(self) -> dict[str, State]:
        found: dict[str, State] = {}
        entries = names.below(self._directory, self._is_searched)
        for entry in islice(filter(_is_watched, entries), MAX_FILES):
            with suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                found[entry.path] = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
        return found

    def _is_searched(self, path: str) -> bool:
        if path == self._directory:
            return True
        is_other = os.path.basename(path) in NOISE or path in self._aside or names.is_environment(path)
        return not (is_other or any(_holds(path, own) for own in OWN))


def _holds(path: str, files: tuple[str, ...]) -> bool:
    return all(os.path.lexists(os.path.join(path, name)) for name in files)


def _is_watched(entry: os.DirEntry[str]) -> bool:
    is_file = entry.is_file(follow_symlinks=False) or entry.is_symlink()
    return is_file and not entry.name.endswith(NOISE_SUFFIXES)


def _line(path: str) -> bytes:
    escaped = os.fsencode(path).replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    return (b"\\>" if os.path.islink(path) else b"") + escaped + b"\n"


class UnshimmedRun:
    """Runs a command with the agent alone, or as it is; its directory stays only where it holds something."""

    becomes_last = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._files: WatchedFiles | None = None

    def environment(self, variables: dict[str, str], new: NewRun, place: PreloadPaths) -> ChildEnvironment:
        """Return the user's variables with those that start the agent, unless nothing is to be in the command."""
        if self._plan.untouched:
            return ChildEnvironment(variables, environment.size_of(variables))
        return environment.build_plain(variables, new.place, place.bootstrap)

    def prepare(self, run: RunFile, _new: NewRun, _place: PreloadPaths) -> None:
        """Say that nothing is recorded."""
        run.key, run.supervisor = "", NOTHING
        run.shim = not_loaded("nothing was recorded", "not-recorded")
        run.trail = self._plan.trail if self._plan.observed else NOTHING

    def arm(self, prepared: PreparedRun) -> None:
        """Look at the files that are there."""
        plan = self._plan
        if plan.observed or plan.untouched:
            self._files = WatchedFiles(plan.working_directory, (prepared.path, *plan.aside))

    def start(self, prepared: PreparedRun) -> Child:
        """Start the command, its addresses as random as they are without reprokit."""
        return Child(prepared.command, self._plan.working_directory, prepared.environment.variables, randomized=True)

    def give_up(self, prepared: PreparedRun) -> None:
        """Leave nothing."""
        remove(prepared.path)

    def watches(self) -> Iterable[Watch | None]:
        """Nothing more than at every run."""
        return ()

    def finish(
        self, prepared: PreparedRun, ended: ExitStatus, interrupted: Callable[[], bool], beside: Sequence[RunCompanion]
    ) -> Finish:
        """Return what gathers the run."""
        from reprokit.launch.finish import Finish

        return Finish(prepared.plan, prepared.path, prepared.run, ended, interrupted, beside, watched_files=self._files)

    def leave(self, prepared: PreparedRun) -> None:
        """Say where the run is, or remove it; who has a step done again reads the result himself."""
        plan, run, path = prepared.plan, prepared.run, prepared.path
        if plan.capture is not None and plan.capture.redo is not None:
            return
        if plan.output is not None or run.snapshots or os.path.isdir(path / rundir.TENSORS):
            say(f"run: {shown(path)}")
        else:
            remove(path)
        say_captured(plan, path, run)
