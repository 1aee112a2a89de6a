"""Decides where the results of a run are, and names them from its working directory."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from reprokit.model.outputs import MAX_LINKS
from reprokit.run_files import names, rundir
from reprokit.run_files.names import CODE_SUFFIXES, NOISE, NOISE_SUFFIXES
from reprokit.run_files.state_files import INDUCTOR

# Memory of Open MPI and NCCL, which other ranks may still use when this one ends.
SEGMENTS = tuple(names.SHARED_MEMORY + name for name in ("nccl-", "sm_segment.", "vader_segment."))
SYSTEM = ("/dev", "/proc", "/run", "/sys", "/tmp", "/var/run", "/var/tmp")
BELOW_SYSTEM = tuple(f"{directory}/" for directory in SYSTEM)
EDITED_SUFFIXES = (*CODE_SUFFIXES, ".ipynb")  # of sources, which people edit while a training runs
WANDB_RUN = re.compile(r"(.*/wandb/(?:offline-)?run-\d{8}_\d{6}-[^/]+)(?:/.*)?", re.DOTALL)
SEPARATED = re.compile(r"[\s=;&|<>\"']+")
MAX_WORDS = 1000
STUDY = ("study.json", "results.jsonl")  # files that mark the directory of a study


class PlaceNames:
    """Classifies and names paths relative to the directories that the run worked in."""

    def __init__(self, own: Iterable[Path], working_directory: Path, moved: tuple[Path, Path] | None) -> None:
        self._own = list(map(os.path.realpath, own))
        self._moved = None if moved is None else (os.path.realpath(moved[0]), os.path.realpath(moved[1]))
        self._directory = os.path.realpath(working_directory)
        link_targets, self.more_links = _temporary_link_targets(self._directory)
        self._results = (names.SHARED_MEMORY, *link_targets)
        self._environments: dict[str, bool] = {}
        self.here = self.recorded_path(self._directory)

    def recorded_path(self, path: str) -> str:
        """Return the path that this file had in the recording, if the run's directory was moved."""
        if self._moved is None or not is_below(path, self._moved[1]):
            return path
        return os.path.normpath(os.path.join(self._moved[0], os.path.relpath(path, self._moved[1])))

    def name(self, path: str) -> str:
        """Return the path relative to the working directory, if it is below it."""
        recorded_path = self.recorded_path(path)
        return relative_path(self.here, recorded_path) if is_below(recorded_path, self.here) else recorded_path

    def has_results(self, path: str) -> bool:
        """Return whether trainings leave results at this path, rather than programs their caches and state."""
        if self._is_environment(os.path.dirname(path)):
            return False
        path = self.recorded_path(path)
        if any(is_below(path, own) for own in self._own) or path.endswith(NOISE_SUFFIXES) or path.startswith(SEGMENTS):
            return False
        if is_below(path, self.here):
            return NOISE.isdisjoint(relative_path(self.here, path).split(os.sep))
        is_result = not f"{path}/".startswith(BELOW_SYSTEM) or f"{path}/".startswith(self._results)
        return is_result and NOISE.isdisjoint(path.split(os.sep))

    def has_lasting_results(self, path: str) -> bool:
        """Return whether a result at this path should exist at the end: shared memory is usually removed."""
        return self.has_results(path) and not path.startswith(names.SHARED_MEMORY)

    def is_counted_below(self, directory: str) -> bool:
        """Return whether files are compared or counted in a directory that the run put in place."""
        place = self.recorded_path(directory)
        return self.has_results(directory) or (place.startswith(names.TEMPORARY) and not is_below(place, self.here))

    def is_temporary(self, path: str) -> bool:
        """Return whether a file may be a result that is ignored because it lies in a temporary directory."""
        recorded_path = self.recorded_path(path)
        is_noise = any(part.startswith((".", INDUCTOR)) for part in recorded_path.split(os.sep))
        is_excluded = is_noise or names.is_tools(recorded_path) or self.has_results(path)
        is_own = any(is_below(recorded_path, own) for own in (*self._own, self.here))
        return recorded_path.startswith(names.TEMPORARY) and not is_excluded and not is_own and is_regular_or_link(path)

    def is_hidden(self, path: str) -> bool:
        """Return whether a file or directory lies where it is taken for a program's cache, environment or state."""
        place = self.recorded_path(path)
        if self.has_results(path) or names.is_tools(place) or place.startswith(SEGMENTS):
            return False
        is_system = f"{place}/".startswith(tuple(f"{name}/" for name in ("/dev", "/proc", "/sys")))
        if is_system or any(is_below(place, own) for own in self._own):
            return False
        parts = place.split(os.sep)
        is_cache = not NOISE.isdisjoint(parts) or self._is_environment(os.path.dirname(path))
        return is_cache or (place.startswith(names.TEMPORARY) and any(part.startswith(".") for part in parts))

    def may_be_written_unseen(self, path: str) -> bool:
        """Return whether a file that changed, and that nothing was seen to write, is a result of the run."""
        is_of_tracker = WANDB_RUN.fullmatch(path) or os.path.basename(os.path.dirname(path)) == "wandb"
        return self.has_results(path) and not (is_of_tracker or path.endswith(EDITED_SUFFIXES))

    def is_searched(self, directory: str) -> bool:
        """Return whether changed files are looked for in a directory below another one."""
        if directory in SYSTEM or os.path.basename(directory).startswith("."):
            return False
        is_of_other = is_run(directory) or all(os.path.lexists(os.path.join(directory, name)) for name in STUDY)
        return not (is_of_other or names.is_environment(directory)) and self.has_results(directory)

    def named_by(self, command: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Yield the directories that words of a command name, and those of named files; whether it is the first."""
        for word in islice(command, MAX_WORDS):
            for text in dict.fromkeys((word, *SEPARATED.split(word)[:MAX_WORDS])):  # options, and lines of a shell
                path = os.path.realpath(os.path.join(self._directory, text)) if text and "\0" not in text else "/"
                is_directory = os.path.isdir(path)
                directory = path if is_directory else os.path.dirname(path)
                is_system = f"{directory}/".startswith(names.SYSTEM) or directory == "/"
                if os.path.lexists(path) and not is_system and self.has_results(os.path.join(directory, "any")):
                    yield directory, is_directory

    def _is_environment(self, directory: str) -> bool:
        """Return whether this directory of the working directory is a virtual environment, or within one."""
        if not directory.startswith(self._directory + os.sep):
            return False
        cached = self._environments.get(directory)
        if cached is None:
            is_environment = names.is_environment(directory) or self._is_environment(os.path.dirname(directory))
            cached = self._environments[directory] = is_environment
        return cached


def _temporary_link_targets(directory: str) -> tuple[tuple[str, ...], bool]:
    """Return the temporary directories that links in the working directory point to, and whether more may exist."""

    def is_searched(path: str) -> bool:
        return path == directory or not (os.path.basename(path).startswith(".") or names.is_environment(path))

    files = names.below(directory, is_searched)
    targets = [os.path.realpath(entry.path) for entry in islice(files, MAX_LINKS) if entry.is_symlink()]
    return tuple(f"{target}/" for target in targets if target.startswith(names.TEMPORARY)), next(
        files, None
    ) is not None


def is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory if directory == "/" else f"{directory}/")


def relative_path(directory: str, path: str) -> str:
    """Return the path relative to a directory above it: os.path.relpath would normalize both again."""
    return path[len(directory.rstrip("/")) + 1 :] or "."


def is_regular_or_link(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def is_run(directory: str) -> bool:
    """Return whether a directory holds a run."""
    return os.path.lexists(os.path.join(directory, rundir.RUN))
