"""Removes what an asked replay left under names of its own, such as a log named by its date.

A file is removed only if all of this shows that nobody else has anything in it:
- the replay was seen to write it;
- nothing had its name when the replay began, nor was the file itself there: another may have been renamed to it;
- its list, made when the replay had ended, names it, and the file still has the digest that stands there;
- nobody has it open for writing now.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from reprokit.core.errors import ReprokitError
from reprokit.core.messages import say
from reprokit.core.printable import listed
from reprokit.model.outputs import OutputFile, OutputLink, OutputsFile
from reprokit.run.file_times import born
from reprokit.run_files.rundir import RunDirectory, open_regular, sealed

MAX_DIRECTORIES = 10_000  # of which the names in them are remembered
MAX_NAMED = 5


class NewOutputs:
    """The names in the directories of a recording's outputs, as they are before a replay of it."""

    def __init__(self, recording: RunDirectory) -> None:
        """Remember the names, and the time now by the clock of each file system that has them."""
        self._started: dict[int, int] = {}
        self._directory = Path(os.path.realpath(recording.run.working_directory))
        self._recorded = {output.path for output in _listed(recording.outputs())}
        above = {parent for name in self._recorded for parent in (self._directory / name).parents}
        self._names: dict[Path, set[str]] = {}
        for parent in islice(sorted({self._directory, *above}), MAX_DIRECTORIES):
            with suppress(OSError):
                self._names[parent] = set(os.listdir(parent))
                if parent.stat().st_dev not in self._started:
                    with tempfile.TemporaryFile(dir=parent) as file:
                        status = os.fstat(file.fileno())
                        self._started[status.st_dev] = status.st_mtime_ns

    def remove(self, replay: Path) -> None:
        """Remove what this replay created and nobody else changed; say what stays."""
        try:
            written = _listed(RunDirectory(replay).outputs())
        except ReprokitError:  # it was cut off
            return
        new = {self._directory / output.path: output for output in written if output.path not in self._recorded}
        for path, output in new.items():
            with suppress(OSError):
                if self._is_created(path) and not output.unseen:
                    self._remove(path, output)
        remove_empty(filter(self._is_created, {parent for path in new for parent in path.parents}))
        if stay := [str(path) for path in new if os.path.lexists(path)]:
            say(f"the replay wrote files that stay, as they may be another program's too: {listed(stay, MAX_NAMED)}")

    def _is_created(self, path: Path) -> bool:
        """Return whether nothing had this name when the replay began, and what has it now was made since."""
        places = zip((path, *path.parents), path.parents, strict=False)
        place = next((place for place, parent in places if parent in self._names), None)
        if (
            place is None
            or place.name in self._names[place.parent]
            or os.path.realpath(path.parent) != str(path.parent)
        ):
            return False
        with suppress(OSError):
            return born(path) > self._started.get(path.lstat().st_dev, math.inf)
        return False

    def _remove(self, path: Path, output: OutputFile | OutputLink) -> None:
        if isinstance(output, OutputLink):
            if os.readlink(path) in (output.target, str(self._directory / output.target)):
                path.unlink()
            return
        with open(path, "rb", opener=open_regular) as file:
            before = _state(os.fstat(file.fileno()))
            if not output.digest or sealed(file).digest != output.digest:  # none of what an interrupted replay wrote
                return
            # A lease is given only if nobody can write. Who opens the file meanwhile makes the kernel send a signal.
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # which by default does nothing
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            if _state(os.fstat(file.fileno())) == before == _state(path.lstat()):
                path.unlink()


def _listed(outputs: OutputsFile | None) -> list[OutputFile | OutputLink]:
    return [] if outputs is None else [*outputs.files, *outputs.links]


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove directories that are empty, the innermost first."""
    for directory in sorted(set(directories), key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            directory.rmdir()
