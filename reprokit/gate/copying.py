"""A copy of a checkout in another place, within bounds; what is not worth a copy is a link to the original."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Collection
from pathlib import Path

LINKED = frozenset({".git", ".tox", ".venv", "node_modules", "venv"})
LEFT_OUT = frozenset({".reprokit", "__pycache__"})
MAX_FILES = 20_000
MAX_BYTES = 512 << 20  # of all copies together
MAX_FILE = 32 << 20  # of one file; larger ones are linked
PATIENCE = 60.0  # seconds for git


class TooLarge(Exception):
    """More than the bounds allow."""


class Copy:
    """Makes one."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._listed = listed_by_git(source)
        self.files = self.links = self._bytes = 0

    def make(self) -> None:
        """Fill the target, an empty directory."""
        self._fill(self._source, self._target)

    def _fill(self, source: Path, target: Path) -> None:
        with os.scandir(source) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            path = Path(entry.path)
            if entry.name not in LEFT_OUT and not self._target.is_relative_to(path):
                self._take(path, target / entry.name, entry.stat(follow_symlinks=False))

    def _take(self, path: Path, target: Path, status: os.stat_result) -> None:
        is_own = path.name not in LINKED and self._is_listed(path)
        if stat.S_ISLNK(status.st_mode):
            target.symlink_to(os.readlink(path))
        elif stat.S_ISDIR(status.st_mode) and is_own:
            target.mkdir()
            self._fill(path, target)
        elif stat.S_ISREG(status.st_mode) and is_own and status.st_size <= MAX_FILE:
            self._count(status.st_size)
            shutil.copy2(path, target)
        elif stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
            self.links += 1
            target.symlink_to(path)

    def _is_listed(self, path: Path) -> bool:
        return self._listed is None or str(path.relative_to(self._source)) in self._listed

    def _count(self, size: int) -> None:
        self.files, self._bytes = self.files + 1, self._bytes + size
        if self.files > MAX_FILES or self._bytes > MAX_BYTES:
            raise TooLarge(f"more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB would have to be copied")


def listed_by_git(directory: Path) -> Collection[str] | None:
    """What git does not ignore, files and the directories above them; None where git knows nothing of it."""
    command = ["git", "-C", str(directory), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    paths = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    return paths | {str(parent) for path in paths for parent in Path(path).parents}
