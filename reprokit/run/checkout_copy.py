"""Copies a checkout within bounds; what is not worth a copy becomes a link to the original.

With --clean each run of a gate starts in a fresh copy of the state before the first run, at the same path.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from reprokit.core.errors import CannotCopy
from reprokit.run_files.names import ENVIRONMENT

LINKED = frozenset({".git", ".tox", ".venv", "node_modules", "venv"})
LEFT_OUT = frozenset({".reprokit", "__pycache__"})
MAX_FILES = 20_000
MAX_BYTES = 512 << 20  # of all copies together
MAX_FILE = 32 << 20  # of one file; larger files are linked
PATIENCE = 60.0  # seconds for git
BEFORE: Final = "as-before"
PLACE: Final = "checkout"  # directory of fresh copies, below a training's runs
MAX_FRESH = 1_000_000  # files of one fresh copy
SHARE = 3  # a copy may take a third of the free disk space: two copies exist at a time
FICLONE = 0x40049409  # from linux/fs.h


class CopyTooLarge(Exception):
    """Raised when a copy would exceed its bounds."""


class CopyBounds(msgspec.Struct, frozen=True):
    """The limits of a copy."""

    files: int = MAX_FILES
    size: int = MAX_BYTES  # of all copies together
    file: int = MAX_FILE  # bytes of one file; larger files are linked


class CheckoutCopy:
    """Copies the files that git does not ignore, or all files but those that are to be linked."""

    def __init__(
        self, source: Path, target: Path, bounds: CopyBounds | None = None, linked: Collection[Path] | None = None
    ) -> None:
        self._source, self._target, self._bounds = source, target, bounds or CopyBounds()
        self._linked = linked
        self._listed = listed_by_git(source) if linked is None else None
        self.files = self.links = self._size = 0

    def make(self) -> None:
        """Fill the target, which is an empty directory."""
        self._fill(self._source, self._target)

    def _fill(self, source: Path, target: Path) -> None:
        with os.scandir(source) as entries:
            sorted_entries = sorted(entries, key=lambda entry: entry.name)
        for entry in sorted_entries:
            path = Path(entry.path)
            if entry.name not in LEFT_OUT and not self._target.is_relative_to(path):
                self._copy_entry(path, target / entry.name, entry.stat(follow_symlinks=False))
        shutil.copystat(source, target)
        target.chmod(target.stat().st_mode | stat.S_IRWXU)  # otherwise it could not be removed again

    def _copy_entry(self, path: Path, target: Path, status: os.stat_result) -> None:
        is_copied = path.name not in LINKED and self._is_copied(path)
        if stat.S_ISLNK(status.st_mode):
            target.symlink_to(self._link_target(path))
        elif stat.S_ISDIR(status.st_mode) and is_copied:
            target.mkdir()
            self._fill(path, target)
        elif stat.S_ISREG(status.st_mode) and is_copied and status.st_size <= self._bounds.file:
            self.files += 1
            if not _clone(path, target):
                self._count(status.st_size)
                shutil.copyfile(path, target)
            shutil.copystat(path, target)
        elif stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
            self.links += 1
            target.symlink_to(path)

    def _link_target(self, link: Path) -> str:
        """Return where a copied symbolic link must point: to the copy of its target, or else to the target itself."""
        target = os.readlink(link)
        absolute_target = os.path.normpath(link.parent / target)
        if not Path(absolute_target).is_relative_to(self._source):
            return absolute_target
        return os.path.relpath(absolute_target, link.parent) if target.startswith("/") else target

    def _is_copied(self, path: Path) -> bool:
        if self._linked is not None:
            return path not in self._linked and not os.path.exists(path / ENVIRONMENT)
        return self._listed is None or str(path.relative_to(self._source)) in self._listed

    def _count(self, size: int) -> None:
        self._size += size
        if self.files > self._bounds.files or self._size > self._bounds.size:
            limits = f"{self._bounds.files} files or {self._bounds.size >> 20} MiB"
            raise CopyTooLarge(f"more than {limits} would have to be copied")


def _clone(source: Path, target: Path) -> bool:
    """Share blocks with the original until one is written; return False if the file system cannot."""
    try:
        with open(source, "rb") as original, open(target, "xb") as copy:
            fcntl.ioctl(copy, FICLONE, original.fileno())
        return True
    except OSError:
        return False


def listed_by_git(directory: Path) -> Collection[str] | None:
    """Return files that git does not ignore, and the directories above them; None outside of a checkout."""
    command = ["git", "-C", str(directory), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        process = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    paths = {os.fsdecode(name) for name in process.stdout.split(b"\0") if name}
    return paths | {str(parent) for path in paths for parent in Path(path).parents}


def checkout(directory: Path) -> Path:
    """Return the closest directory at or above this one with a checkout; outside of any, the directory itself."""
    checkouts = (path for path in (directory, *directory.parents) if path.parent != path and (path / ".git").exists())
    return next(checkouts, directory)


class FreshCheckouts:
    """The fresh copies for one training; ignored files are copied as well, and data is linked."""

    def __init__(self, directory: Path, place: Path, data: Iterable[str]) -> None:
        self._root = checkout(directory)
        self._place, self.root = place, place / (self._root.name or "root")
        self.directory = self.root / directory.relative_to(self._root)
        self._data = {Path(os.path.abspath(path)) for path in data}

    def renew(self, name: str = BEFORE) -> None:
        """Replace the working copy that a run may have changed by a kept one."""
        self._replace(self.root, self.kept(name), self._root)

    def keep(self, name: str) -> None:
        """Keep the working copy as a run has left it, so that a later run can start from it."""
        self._replace(self.kept(name), self.root, self.root)

    def kept(self, name: str = BEFORE) -> Path:
        """Return the path of a kept copy."""
        return self._place / name

    def _replace(self, target: Path, source: Path, original: Path) -> None:
        """Replace a directory by a copy of another, which is first made from the original if it is missing."""
        try:
            if not source.exists():
                self._copy(original, source)
            shutil.rmtree(target, ignore_errors=True)
            self._copy(source, target)
        except (CopyTooLarge, OSError) as error:
            advice = "name large data with --data, which is linked, or make room where runs are kept (-o)"
            raise CannotCopy(f"{self._root} cannot be copied: {error}; {advice}") from None

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, mode=0o700)
        size = shutil.disk_usage(target).free // SHARE
        CheckoutCopy(source, target, CopyBounds(MAX_FRESH, size, size), self._data).make()

    def remove(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self.root.parent, ignore_errors=True)

    def enter(self) -> None:
        """Set PWD to the copy; called first in the launcher's own process."""
        if "PWD" in os.environ:
            os.environ["PWD"] = str(self.directory)
