"""Names the files and directories that a recording left, found and created, where they are for a replay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from reprokit.core.errors import ReprokitError
from reprokit.model.outputs import FoundFile, OutputsFile
from reprokit.run.aside_place import is_directory, state_of
from reprokit.run_files import home as run_home
from reprokit.run_files import rundir
from reprokit.run_files.home import HOME, home_of
from reprokit.run_files.names import NOISE
from reprokit.run_files.rundir import RunDirectory

MAX_RUNS = 200  # that are looked at


class RecordedFiles:
    """The outputs of a recording, as names that are relative to its working directory where they are below it."""

    def __init__(self, recording: RunDirectory, directory: Path, moved: tuple[Path, Path] | None, replay: Path) -> None:
        outputs = recording.outputs()
        self.is_listed = outputs is not None
        outputs = outputs or OutputsFile()
        self._recording, self._replay = recording, replay
        self._directory = os.path.realpath(directory)
        self._moved = None if moved is None else (os.path.realpath(moved[0]), os.path.realpath(moved[1]))
        self.directory = self._directory if self._moved is None else self._before(self._directory)
        self._files = {file.path: file for file in outputs.files if self._may_be_moved(file.path)}
        self._links = {link.path: link for link in outputs.links if self._may_be_moved(link.path)}
        # Perhaps another program's:
        unseen = {name for name, file in self._files.items() if file.unseen}
        unseen |= {name for name, link in self._links.items() if link.unseen}
        self.unseen = set() if outputs.past_the_shim else unseen
        self.found: dict[str, FoundFile] = {file.path: file for file in outputs.found if self._may_be_moved(file.path)}
        self.directories = set(filter(self._may_be_moved, outputs.directories)) - self.found.keys()
        self.names = {*self._files, *self._links, *self.found, *self.directories}

    def path_of(self, name: str) -> Path:
        """Return where a file is now."""
        path = os.path.normpath(os.path.join(self._directory, name))
        if self._moved is not None and os.path.isabs(name) and _is_below(name, self._moved[0]):
            path = os.path.normpath(os.path.join(self._moved[1], os.path.relpath(name, self._moved[0])))
        return Path(path)

    def _before(self, path: str) -> str:
        """Return the path that a directory had in the recording, if it was moved."""
        assert self._moved is not None
        return os.path.normpath(os.path.join(self._moved[0], os.path.relpath(path, self._moved[1])))

    def _may_be_moved(self, name: str) -> bool:
        """Return whether a name is one that reprokit lists, and no part of a run."""
        parts = name.split("/")
        is_strange = not name or "\0" in name or ".." in parts or (os.path.isabs(name) and self._is_bundled)
        is_of_run = _is_below(str(self.path_of(name)), os.path.realpath(self._recording.path))
        return not (is_strange or is_of_run) and NOISE.isdisjoint(parts)

    @property
    def _is_bundled(self) -> bool:
        return self._recording.run.bundled is not None

    # Where they can be set aside

    def by_home(self) -> tuple[dict[Path, list[str]], list[str]]:
        """Return the names by a directory of reprokit's on their file system, and those that cannot be reached.

        Directories come first, from the outermost.
        """
        own_home, homes = home_of(Path(self._directory)), {}
        by_device: dict[int, list[str]] = {}
        unreachable: list[str] = []
        for name in (*sorted(self.directories), *sorted(self.names - self.directories)):
            try:
                by_device.setdefault(_device(self.path_of(name).parent), []).append(name)
            except OSError:
                unreachable.append(name)
        for device, names in by_device.items():
            homes[own_home if _device(own_home) == device else self._home_above(names)] = names
        return homes, unreachable

    def _home_above(self, names: list[str]) -> Path:
        """Return a place beside the outermost directory that was created for these files, on their file system."""
        shared = Path(os.path.commonpath([os.path.realpath(self.path_of(name).parent) for name in names]))
        created = {self.path_of(name) for name in self.directories}
        above = [path for path in (shared, *shared.parents) if path.exists() and _device(path) == _device(shared)]
        usable = (path for path in above if os.access(path, os.W_OK) and path not in created)
        return next(usable, shared) / HOME

    # Whose a file is

    def has_copy(self, name: str) -> bool:
        """Return whether the recording has a copy of a file, or all that a link is."""
        file = self._files.get(name)
        return name in self._links or (file is not None and file.kept is not None)

    def is_as_found(self, path: Path, found: FoundFile) -> bool:
        """Return whether what the recording found is there already, as in a fresh copy."""
        state = state_of(path)
        if found.kind == "link" or state is None or is_directory(path):
            return False
        return (state.size, state.modified) == (found.size, found.modified) and _digest(path) == found.digest

    def is_of_recording(self, path: Path, name: str) -> bool:
        """Return whether a file holds what the recording or an earlier replay left, or another run has a copy of."""
        state, file, link = state_of(path), self._files.get(name), self._links.get(name)
        if link is not None and path.is_symlink():
            return os.readlink(path) in (link.target, os.path.join(self.directory, link.target))
        if file is None or state is None or path.is_symlink():
            return is_directory(path)
        if (state.size, state.modified) == (file.size, file.modified):
            return True
        is_same = state.size == file.size and _digest(path) == file.digest
        return is_same or (state.size, state.modified) in self._of_other_runs.get(name, ())

    @cached_property
    def _of_other_runs(self) -> dict[str, set[tuple[int, int]]]:
        """Sizes and times of what other runs left: replays of the recording, and those that have a copy of it."""
        states: dict[str, set[tuple[int, int]]] = {}
        for run in self._other_runs():
            asked = run.run.replay_of
            is_replay = asked is not None and asked.run_id == self._recording.run.run_id
            with suppress(ReprokitError):
                for file in (run.outputs() or OutputsFile()).files:
                    if is_replay or file.kept is not None:
                        states.setdefault(file.path, set()).add((file.size, file.modified))
        return states

    def _other_runs(self) -> Iterator[RunDirectory]:
        places = self._recording.path.resolve().parent, self._replay.parent, home_of(Path(self._directory))
        runs = [run for place in dict.fromkeys(places) if place.is_dir() for run in run_home.newest_first(place)]
        yield from (run for run in runs[:MAX_RUNS] if os.path.realpath(run.run.working_directory) == self.directory)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(os.path.join(directory, ""))


def _device(path: Path) -> int:
    """Return the file system on which a directory is, or would be made."""
    return next(parent.stat().st_dev for parent in (path, *path.parents) if parent.exists())


def _digest(path: Path) -> str:
    sealed = rundir.seal_file(path)
    return "" if sealed is None else sealed.digest
