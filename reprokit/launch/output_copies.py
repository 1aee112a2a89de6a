"""Keeps copies of small outputs in the run directory, as a replay usually overwrites the files themselves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from reprokit import rundir

PIECE = 8 << 20  # bytes copied between two looks at whether to stop
MARGIN = 64 << 20  # bytes of the disk that are left free
_NO_COPYING = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class KeptOutput(msgspec.Struct, frozen=True):
    """A copy in the run directory, and its number there."""

    file: IO[bytes]
    number: int


class Keeper(msgspec.Struct):
    """Copies files until they come to so many bytes."""

    run: Path
    left: int
    interrupted: Callable[[], bool]
    number: int = 0

    def copy(self, file: IO[bytes]) -> KeptOutput | None:
        """A copy that did not change while it was made; None where there is no room, or no use."""
        size = os.fstat(file.fileno()).st_size
        if not 0 < size <= self.left or not self._has_room(size):
            return None
        try:
            copy = self._new()
        except OSError:
            return None
        try:
            if self._copied(file, copy.file, size):
                self.left -= size
                self.number += 1
                return copy
        except OSError:
            pass
        self.drop(copy)
        return None

    def drop(self, copy: KeptOutput) -> None:
        """Forget a copy."""
        copy.file.close()
        with suppress(OSError):
            os.unlink(self._path(copy.number))

    def _path(self, number: int) -> Path:
        return self.run / rundir.KEPT / str(number)

    def _has_room(self, size: int) -> bool:
        try:
            disk = os.statvfs(self.run)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize >= size + MARGIN

    def _new(self) -> KeptOutput:
        with suppress(FileExistsError):
            os.mkdir(self.run / rundir.KEPT, 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return KeptOutput(os.fdopen(os.open(self._path(self.number), flags, 0o600), "w+b"), self.number)

    def _copied(self, file: IO[bytes], copy: IO[bytes], size: int) -> bool:
        """Whether all bytes of a file were copied, and it was the same file all the while."""
        before = _state(file)
        done = 0
        while done < size:
            count = _copy_some(file.fileno(), copy.fileno(), done, min(PIECE, size - done))
            if count == 0 or self.interrupted():
                return False
            done += count
        return _state(file) == before


def _state(file: IO[bytes]) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _copy_some(source: int, target: int, offset: int, count: int) -> int:
    """Copy by the kernel, which shares the blocks where the file system can."""
    try:
        return os.copy_file_range(source, target, count, offset, offset)
    except OSError as error:
        if error.errno not in _NO_COPYING:
            raise
    data = os.pread(source, count, offset)
    return os.pwrite(target, data, offset) if data else 0
