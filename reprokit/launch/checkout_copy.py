"""Copies of a checkout, within bounds; what is not worth a copy is a link to the original.

With --clean each run of a gate starts in a fresh copy of what was there before the first, at the same place.
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

from reprokit.errors import CannotCopy
from reprokit.names import ENVIRONMENT

LINKED = frozenset({".git", ".tox", ".venv", "node_modules", "venv"})
LEFT_OUT = frozenset({".reprokit", "__pycache__"})
MAX_FILES = 20_000
MAX_BYTES = 512 << 20  # of all copies together
MAX_FILE = 32 << 20  # of one file; larger ones are linked
PATIENCE = 60.0  # seconds for git
BEFORE: Final = "as-before"
PLACE: Final = "checkout"  # of fresh copies, below the runs of a training
MAX_FRESH = 1_000_000  # files of one
SHARE = 3  # of the room on the disk this part may be taken: there are two copies at a time
FICLONE = 0x40049409  # of linux/fs.h


class CopyTooLarge(Exception):
    """More than the bounds allow."""


class CopyBounds(msgspec.Struct, frozen=True):
    """How much is copied."""

    files: int = MAX_FILES
    size: int = MAX_BYTES  # of all copies together
    file: int = MAX_FILE  # of one; larger ones are linked


class CheckoutCopy:
    """Makes one: of what git does not ignore, or of all but what is named."""

    def __init__(
        self, source: Path, target: Path, bounds: CopyBounds | None = None, linked: Collection[Path] | None = None
    ) -> None:
        self._source, self._target, self._bounds = source, target, bounds or CopyBounds()
        self._linked = linked
        self._listed = listed_by_git(source) if linked is None else None
        self.files = self.links = self._size = 0

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
        shutil.copystat(source, target)
        target.chmod(target.stat().st_mode | stat.S_IRWXU)  # or it could not be removed again

    def _take(self, path: Path, target: Path, status: os.stat_result) -> None:
        is_own = path.name not in LINKED and self._is_copied(path)
        if stat.S_ISLNK(status.st_mode):
            target.symlink_to(self._where(path))
        elif stat.S_ISDIR(status.st_mode) and is_own:
            target.mkdir()
            self._fill(path, target)
        elif stat.S_ISREG(status.st_mode) and is_own and status.st_size <= self._bounds.file:
            self.files += 1
            if not _cloned(path, target):
                self._count(status.st_size)
                shutil.copyfile(path, target)
            shutil.copystat(path, target)
        elif stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
            self.links += 1
            target.symlink_to(path)

    def _where(self, link: Path) -> str:
        """Where a copy of a symbolic link must lead: to the copy of what it leads to, or else to the same place."""
        text = os.readlink(link)
        place = os.path.normpath(link.parent / text)
        if not Path(place).is_relative_to(self._source):
            return place
        return os.path.relpath(place, link.parent) if text.startswith("/") else text

    def _is_copied(self, path: Path) -> bool:
        if self._linked is not None:
            return path not in self._linked and not os.path.exists(path / ENVIRONMENT)
        return self._listed is None or str(path.relative_to(self._source)) in self._listed

    def _count(self, size: int) -> None:
        self._size += size
        if self.files > self._bounds.files or self._size > self._bounds.size:
            more = f"{self._bounds.files} files or {self._bounds.size >> 20} MiB"
            raise CopyTooLarge(f"more than {more} would have to be copied")


def _cloned(source: Path, target: Path) -> bool:
    """Share the bytes with the original until one of both is written, where the file system can."""
    try:
        with open(source, "rb") as before, open(target, "xb") as after:
            fcntl.ioctl(after, FICLONE, before.fileno())
        return True
    except OSError:
        return False


def listed_by_git(directory: Path) -> Collection[str] | None:
    """Return what git does not ignore, files and the directories above them; None where git knows nothing of it."""
    command = ["git", "-C", str(directory), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    paths = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    return paths | {str(parent) for path in paths for parent in Path(path).parents}


def checkout(directory: Path) -> Path:
    """The directory above that git works in, as scripts name files beside their own; else the directory itself."""
    above = (path for path in (directory, *directory.parents) if path.parent != path and (path / ".git").exists())
    return next(above, directory)


class FreshCheckouts:
    """The copies for one training; what git ignores is copied too, and what is named as data is linked."""

    def __init__(self, directory: Path, place: Path, data: Iterable[str]) -> None:
        self._root = checkout(directory)
        self._place, self.root = place, place / (self._root.name or "root")
        self.directory = self.root / directory.relative_to(self._root)
        self._data = {Path(os.path.abspath(path)) for path in data}

    def renew(self, kept: str = BEFORE) -> None:
        """Put a copy in the place of what a run has made of the one before."""
        self._replace(self.root, self.kept(kept), self._root)

    def keep(self, name: str) -> None:
        """Keep what a run has made of the copy; a later one may begin with it."""
        self._replace(self.kept(name), self.root, self.root)

    def kept(self, name: str = BEFORE) -> Path:
        """Return where a copy is kept."""
        return self._place / name

    def _replace(self, target: Path, source: Path, first: Path) -> None:
        """Copy a directory to the place of another; the source is made first where it is not there."""
        try:
            if not source.exists():
                self._copy(first, source)
            shutil.rmtree(target, ignore_errors=True)
            self._copy(source, target)
        except (CopyTooLarge, OSError) as error:
            what = "name large data with --data, which is linked, or make room where runs are kept (-o)"
            raise CannotCopy(f"{self._root} cannot be copied: {error}; {what}") from None

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, mode=0o700)
        size = shutil.disk_usage(target).free // SHARE
        CheckoutCopy(source, target, CopyBounds(MAX_FRESH, size, size), self._data).make()

    def remove(self) -> None:
        """Leave nothing of them."""
        shutil.rmtree(self.root.parent, ignore_errors=True)

    def enter(self) -> None:
        """In the launcher's own process, before it does anything else."""
        if "PWD" in os.environ:
            os.environ["PWD"] = str(self.directory)
