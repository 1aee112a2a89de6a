"""The files of a part of a run directory, refused by their number and sizes before anything of them is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from reprokit.core.errors import ReprokitError, RunDamaged, RunNotReadable, reason

MAX_FILES = 1_000_000
MAX_BYTES = 1 << 40  # of all files together
MAX_HOLES = 256 << 20  # of them, bytes that stand nowhere on the disk: nothing of reprokit's writes such
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def bounded_names(directory: Path, ending: str) -> list[str]:
    """Return the names with this ending in their order, none where there is no such directory."""
    names: list[str] = []
    size = holes = 0
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            raise RunDamaged(f"{directory} is not a directory; the run cannot be used")
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith(ending):
                    names.append(entry.name)
                    status = entry.stat(follow_symlinks=False)
                    size, holes = size + status.st_size, holes + _holes(directory / entry.name, status)
                    _require_bounded(directory, len(names), size, holes)
    except FileNotFoundError:
        return sorted(names)
    except PermissionError:
        raise RunNotReadable(f"{directory} may not be read by this user; run as its owner or ask for a copy") from None
    except OSError as error:
        raise RunDamaged(f"{directory}: {error.strerror}; the run cannot be used") from None
    return sorted(names)


def open_file(path: Path | str) -> int:
    """Return a descriptor of a regular file of a run directory, never by a symbolic link; waits for no FIFO."""
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        raise RunDamaged(f"{path} is missing; the run cannot be used") from None
    except PermissionError:
        raise RunNotReadable(f"{path} may not be read by this user; run as its owner or ask for a copy") from None
    except OSError as error:
        raise RunDamaged(f"{path}: {reason(error)}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunDamaged(f"{path} is not a regular file")
    return descriptor


def read_whole(
    path: Path,
    limit: int,
    error: type[ReprokitError],
    advice: str = "",
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes:
    """Read a regular file that somebody named; raises `error` with one line where there is none within the limit.

    `check` is given the status of the very file that is read, before it is.
    """
    what_to_do = f"; {advice}" if advice else ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise error(f"{path} is not a regular file{what_to_do}")
            if check is not None:
                check(status)
            data = file.read(limit + 1)
    except (OSError, ValueError) as refused:
        raise error(f"{path}: {reason(refused)}{what_to_do}") from None
    if len(data) > limit:
        raise error(f"{path} is larger than {limit} bytes{what_to_do}")
    return data


def _require_bounded(directory: Path, files: int, size: int, holes: int) -> None:
    for amount, limit, unit in (
        (files, MAX_FILES, "files"),
        (size, MAX_BYTES, "bytes"),
        (holes, MAX_HOLES, "bytes that were never written (its files are sparse)"),
    ):
        if amount > limit:
            raise RunDamaged(f"{directory} holds more than {limit} {unit}; the run cannot be used")


def _holes(path: Path, status: os.stat_result) -> int:
    """Bytes of a file without a block on the disk. A file system that writes late, or compresses, has no hole there."""
    missing = status.st_size - status.st_blocks * 512
    if missing < 1 << 20 or not stat.S_ISREG(status.st_mode):
        return 0
    descriptor = os.open(path, _READ)
    try:
        return missing if os.lseek(descriptor, 0, os.SEEK_HOLE) < status.st_size else 0
    finally:
        os.close(descriptor)
