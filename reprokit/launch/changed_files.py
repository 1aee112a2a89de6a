"""Which files a command wrote, where no shim tells: those below its directory that are other ones afterwards."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path

from reprokit import names, rundir
from reprokit.names import NOISE, NOISE_SUFFIXES

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
        return os.path.basename(path) not in NOISE and path not in self._aside and not names.is_environment(path)


def _is_watched(entry: os.DirEntry[str]) -> bool:
    is_file = entry.is_file(follow_symlinks=False) or entry.is_symlink()
    return is_file and not entry.name.endswith(NOISE_SUFFIXES)


def _line(path: str) -> bytes:
    escaped = os.fsencode(path).replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    return (b"\\>" if os.path.islink(path) else b"") + escaped + b"\n"
