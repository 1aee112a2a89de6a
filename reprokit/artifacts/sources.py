"""Sources of bytes: files, pieces of them, bytes in memory, and a source as a file for the standard library.

Files are read, never mapped: whoever cuts a mapped file short kills its readers with SIGBUS.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reprokit.artifacts.elements import Siblings, Source
from reprokit.errors import ArtifactDamaged, ArtifactNotReadable

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK = 1 << 16  # bytes read at once: two of them stay in the L2 cache, without which reading takes four times as long


class FileSource:
    """A regular file, opened until it is closed or forgotten."""

    def __init__(self, fd: int):
        self.beside: Siblings | None = None
        self._file = os.fdopen(fd, "rb", buffering=0)
        self.fd = fd
        self.size = os.fstat(fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        found = os.pread(self.fd, length, offset)
        while len(found) < length and (more := os.pread(self.fd, length - len(found), offset + len(found))):
            found += more
        return found

    def read_into(self, offset: int, target: memoryview) -> int:
        """As read, into memory that is there already."""
        done = 0
        while done < len(target) and (count := os.preadv(self.fd, [target[done:]], offset + done)):
            done += count
        return done

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Memory:
    """Bytes in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@dataclass(frozen=True)
class Slice:
    """A piece of a source; make them with piece()."""

    base: Source
    start: int
    size: int

    def read(self, offset: int, length: int) -> bytes:
        return self.base.read(self.start + offset, max(0, min(length, self.size - offset)))

    def read_into(self, offset: int, target: memoryview) -> int:
        length = max(0, min(len(target), self.size - offset))
        return fill(self.base, self.start + offset, target[:length])


class Summed:
    """A piece of a source of which the container says the CRC-32; a read of all of it is checked."""

    def __init__(self, base: Slice, crc: int, sum_: Callable[[bytes, int], int] = zlib.crc32, what: str = ""):
        self.base, self._crc, self._sum = base, crc, sum_
        self._what = what or "a member has the CRC-32 {:08x}, its container says {:08x}"
        self.beside: Siblings | None = None

    @property
    def size(self) -> int:
        return self.base.size

    def read(self, offset: int, length: int) -> bytes:
        found = self.base.read(offset, length)
        if offset == 0 and len(found) == self.size:
            self._require(self._sum(found, 0))
        return found

    def read_into(self, offset: int, target: memoryview) -> int:
        return self.base.read_into(offset, target)

    def verify(self) -> None:
        """Read all of it once for its sum."""
        crc = 0
        for block in blocks(self.base):
            crc = self._sum(block, crc)
        self._require(crc)

    def _require(self, crc: int) -> None:
        if crc != self._crc:
            raise ArtifactDamaged(self._what.format(crc, self._crc))


def verify(source: Source | None) -> None:
    """Check the sum of what a source is a piece of, where there is one."""
    while isinstance(source, Slice):
        source = source.base
    if isinstance(source, Summed):
        source.verify()
        verify(source.base)


def piece(source: Source, start: int, size: int) -> Slice:
    """Return a piece of a source, which must lie within it."""
    if start < 0 or size < 0 or start + size > source.size:
        raise ArtifactDamaged(f"bytes {start} to {start + size} are beyond the end at {source.size}")
    if isinstance(source, Slice):
        return Slice(source.base, source.start + start, size)
    return Slice(source, start, size)


def exactly(source: Source, offset: int, length: int) -> bytes:
    """So many bytes from a place, all of them there."""
    if offset < 0 or length < 0 or offset + length > source.size:
        raise ArtifactDamaged(f"it ends at byte {source.size}, before byte {offset + length}")
    found = source.read(offset, length)
    if len(found) != length:
        raise ArtifactDamaged(f"it was cut short at byte {offset + len(found)} while it was read")
    return found


def blocks(source: Source, start: int = 0) -> Iterator[bytes]:
    """Yield all bytes from a place on, some at a time."""
    for at in range(start, source.size, BLOCK):
        yield exactly(source, at, min(BLOCK, source.size - at))


def whole(source: Source, limit: int, what: str = "it") -> bytes:
    """Return all bytes of a source that must be small."""
    if source.size > limit:
        raise ArtifactDamaged(f"{what} has {source.size} bytes, more than the {limit} that are read")
    return exactly(source, 0, source.size)


def fill(source: Source, offset: int, target: memoryview) -> int:
    """Read into memory that is there already; fewer bytes than it holds only at the end."""
    into = getattr(source, "read_into", None)
    if into is not None:
        return int(into(offset, target))
    found = source.read(offset, len(target))
    target[: len(found)] = found
    return len(found)


def fill_exactly(source: Source, offset: int, target: memoryview) -> None:
    """As fill, all bytes there."""
    done = fill(source, offset, target)
    if done != len(target):
        raise ArtifactDamaged(f"it ends at byte {offset + done}, before byte {offset + len(target)}")


class Stream(io.RawIOBase):
    """A source as a file that can be read and sought, for zipfile, tarfile and the like."""

    def __init__(self, source: Source):
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("a negative place")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Buffer) -> int:
        done = fill(self._source, self._at, memoryview(target).cast("B"))
        self._at += done
        return done


def open_file(path: Path, flags: int = 0) -> FileSource:
    """Return a regular file, also behind symbolic links; never waits for a pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArtifactNotReadable(f"{path}: {reason}; name a file that can be read") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ArtifactNotReadable(f"{path} is neither a file nor a directory, and cannot be compared")
    return FileSource(fd)


def siblings(path: Path) -> Siblings:
    """Return the regular files of the directory in which a file stands, no link followed; they stay open."""

    def find(name: str) -> FileSource | None:
        with suppress(ArtifactNotReadable):
            return open_file(path.parent / name, os.O_NOFOLLOW)
        return None

    return Siblings(path.name, find)


class ForwardReader:
    """A place in a source; the bytes up to the next one are read, or passed over as a source of their own."""

    def __init__(self, source: Source, what: str):
        """Name the source as errors are to name it."""
        self.source, self.what = source, what
        self.longest_line, self.room = sys.maxsize - 1, sys.maxsize  # bytes that may be read and not passed over
        self._file = io.BufferedReader(Stream(source), BLOCK)

    @property
    def at(self) -> int:
        return self._file.tell()

    def read(self, length: int) -> bytes:
        """Return the next bytes, all of them there."""
        self.hold(length)
        found = self._file.read(length)
        if len(found) < length:
            raise ArtifactDamaged(f"{self.what} ends at byte {self.at}, {length - len(found)} bytes too early")
        return found

    def readline(self) -> bytes:
        """Return the text up to the next end of line, with it."""
        found = self._file.readline(self.longest_line + 1)
        self.hold(len(found))
        if not found.endswith(b"\n"):
            is_long = len(found) > self.longest_line
            problem = "has a line that is too long before" if is_long else "ends within a line at"
            raise ArtifactDamaged(f"{self.what} {problem} byte {self.at}")
        return found

    def skip(self, length: int) -> Source:
        """Return the next bytes as a source of their own."""
        at, size = self.at, self.source.size
        if length > size - at:
            raise ArtifactDamaged(f"{length} bytes are to follow byte {at} of {self.what}, but {size - at} do")
        self._file.seek(at + length)
        return piece(self.source, at, length)

    def hold(self, length: int) -> None:
        """Count bytes that may stay in memory."""
        self.room -= length
        if self.room < 0:
            raise ArtifactDamaged(f"the strings of {self.what} come to more than are read")
