"""Runs a command without the shim: with the agent, which may record metrics, or with nothing added.

No entropy is recorded. The files that the command wrote are found by comparing the directory before and after.
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
OWN = (
    (rundir.RUN, rundir.AGENT_PLAN),
    ("study.json", "results.jsonl"),
)  # files that mark directories of runs and studies
MAX_FILES = 100_000  # files watched below the directory

State = tuple[int, int, int, int]  # of a file: size, modification and change time, inode


class WatchedFiles:
    """The states of the files below a directory before the command starts."""

    def __init__(self, directory: Path, ignored: tuple[Path, ...]):
        self._directory = os.path.realpath(directory)
        self._ignored = frozenset(os.path.realpath(path) for path in ignored)
        self._states_before = self._file_states()

    @property
    def is_complete(self) -> bool:
        """Return whether there are few enough files to watch them all."""
        return len(self._states_before) < MAX_FILES

    def write(self, run: Path) -> None:
        """Write the names of new and changed files into the run directory, as the shim does."""
        if not self.is_complete:
            return
        changed = [path for path, state in self._file_states().items() if self._states_before.get(path) != state]
        lines = b"".join(_line(path) for path in sorted(changed))
        descriptor = os.open(run / rundir.WRITTEN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(lines)

    def _file_states(self) -> dict[str, State]:
        states: dict[str, State] = {}
        entries = names.below(self._directory, self._is_searched)
        for entry in islice(filter(_is_watched, entries), MAX_FILES):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                states[entry.path] = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
        return states

    def _is_searched(self, path: str) -> bool:
        if path == self._directory:
            return True
        is_skipped = os.path.basename(path) in NOISE or path in self._ignored or names.is_environment(path)
        return not (is_skipped or any(_holds(path, marker_files) for marker_files in OWN))


def _holds(path: str, files: tuple[str, ...]) -> bool:
    return all(os.path.lexists(os.path.join(path, name)) for name in files)


def _is_watched(entry: os.DirEntry[str]) -> bool:
    is_file = entry.is_file(follow_symlinks=False) or entry.is_symlink()
    return is_file and not entry.name.endswith(NOISE_SUFFIXES)


def _line(path: str) -> bytes:
    escaped = os.fsencode(path).replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    return (b"\\>" if os.path.islink(path) else b"") + escaped + b"\n"


class UnshimmedRun:
    """Runs a command with the agent alone or unchanged; keeps the run directory only if it is of use."""

    becomes_last = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._files: WatchedFiles | None = None

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
        """Record the states of existing files."""
        plan = self._plan
        if plan.observed or plan.untouched:
            self._files = WatchedFiles(plan.working_directory, (prepared.path, *plan.aside))

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
        from reprokit.launch.finish import Finish

        return Finish(
            prepared.plan, prepared.path, prepared.run, exit_status, interrupted, companions, watched_files=self._files
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
