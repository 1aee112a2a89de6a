"""Sources of bytes: files, slices, bytes in memory, checksummed members, and a file object over any source.

Files are read, never mapped: truncating a mapped file would kill its readers with SIGBUS.
"""

from __future__ import annotations

import hashlib
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

from reprokit.core.errors import ArtifactDamaged, ArtifactNotReadable
from reprokit.diff.elements import Siblings, Source

if TYPE_CHECKING:
    from typing_extensions import Buffer

LONGEST_READ = 16 << 20  # bytes of records that are read at a time
BLOCK = 1 << 16  # bytes per read: two blocks fit into the L2 cache; beyond it reading takes four times as long


class FileSource:
    """A regular file, open until it is closed or garbage-collected."""

    def __init__(self, fd: int):
        self.beside: Siblings | None = None
        self._file = os.fdopen(fd, "rb", buffering=0)
        self.fd = fd
        self.size = os.fstat(fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        data = os.pread(self.fd, length, offset)
        while len(data) < length and (rest := os.pread(self.fd, length - len(data), offset + len(data))):
            data += rest
        return data

    def read_into(self, offset: int, target: memoryview) -> int:
        """Read into an existing buffer; return the number of bytes."""
        done = 0
        while done < len(target) and (count := os.preadv(self.fd, [target[done:]], offset + done)):
            done += count
        return done

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class BytesSource:
    """Bytes in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@dataclass(frozen=True)
class SourceSlice:
    """A slice of a source; created by piece(), which checks its bounds."""

    base: Source
    start: int
    size: int

    def read(self, offset: int, length: int) -> bytes:
        return self.base.read(self.start + offset, max(0, min(length, self.size - offset)))

    def read_into(self, offset: int, target: memoryview) -> int:
        length = max(0, min(len(target), self.size - offset))
        return fill(self.base, self.start + offset, target[:length])


@dataclass(frozen=True)
class ColumnSource:
    """The bytes of one field of all records, which follow each other in a source."""

    base: Source
    record: int  # bytes of a record
    start: int  # of the field within a record
    width: int  # bytes of the field

    @property
    def size(self) -> int:
        return self.base.size // self.record * self.width

    def read(self, offset: int, length: int) -> bytes:
        end = max(offset, min(offset + length, self.size))
        first, last = offset // self.width, -(-end // self.width)
        count, column = max(1, LONGEST_READ // self.record), bytearray()
        for number in range(first, last, count):
            amount = min(count, last - number)
            records = self.base.read(number * self.record, amount * self.record)
            block = bytearray(amount * self.width)
            for byte in range(self.width):
                block[byte :: self.width] = records[self.start + byte :: self.record]
            column += block
        return bytes(column[offset - first * self.width : end - first * self.width])


class ChecksummedSource:
    """A slice with a stored checksum (CRC-32 by default), checked by each read of all of it."""

    def __init__(self, base: SourceSlice, crc: int, sum_: Callable[[bytes, int], int] = zlib.crc32, what: str = ""):
        self.base, self._crc, self._sum = base, crc, sum_
        self._what = what or "a member has the CRC-32 {:08x}, its container says {:08x}"
        self.beside: Siblings | None = None

    @property
    def size(self) -> int:
        return self.base.size

    def read(self, offset: int, length: int) -> bytes:
        data = self.base.read(offset, length)
        if offset == 0 and len(data) == self.size:
            self._check(self._sum(data, 0))
        return data

    def read_into(self, offset: int, target: memoryview) -> int:
        return self.base.read_into(offset, target)

    def verify(self) -> None:
        """Read all bytes and check the checksum; raises ArtifactDamaged if it does not match."""
        crc = 0
        for block in blocks(self.base):
            crc = self._sum(block, crc)
        self._check(crc)

    def _check(self, crc: int) -> None:
        if crc != self._crc:
            raise ArtifactDamaged(self._what.format(crc, self._crc))


def verify(source: Source | None) -> None:
    """Check the checksum of the member that a source is or belongs to, if it has one."""
    while isinstance(source, SourceSlice):
        source = source.base
    if isinstance(source, ChecksummedSource):
        source.verify()
        verify(source.base)


def piece(source: Source, start: int, size: int) -> SourceSlice:
    """Return a slice of a source; raises ArtifactDamaged if it is out of bounds."""
    if start < 0 or size < 0 or start + size > source.size:
        raise ArtifactDamaged(f"bytes {start} to {start + size} are beyond the end at {source.size}")
    if isinstance(source, SourceSlice):
        return SourceSlice(source.base, source.start + start, size)
    return SourceSlice(source, start, size)


def read_exactly(source: Source, offset: int, length: int) -> bytes:
    """Return `length` bytes from `offset` on; raises ArtifactDamaged if there are fewer."""
    if offset < 0 or length < 0 or offset + length > source.size:
        raise ArtifactDamaged(f"it ends at byte {source.size}, before byte {offset + length}")
    data = source.read(offset, length)
    if len(data) != length:
        raise ArtifactDamaged(f"it was cut short at byte {offset + len(data)} while it was read")
    return data


def blocks(source: Source, start: int = 0) -> Iterator[bytes]:
    """Yield all bytes from `start` on, in blocks."""
    for offset in range(start, source.size, BLOCK):
        yield read_exactly(source, offset, min(BLOCK, source.size - offset))


def digest(source: Source) -> str:
    """Return the SHA-256 of all bytes, as run directories name it."""
    sum_ = hashlib.sha256()
    for block in blocks(source):
        sum_.update(block)
    return f"sha256:{sum_.hexdigest()}"


def read_whole(source: Source, limit: int, what: str = "it") -> bytes:
    """Return all bytes of a source; raises ArtifactDamaged if they are more than `limit`."""
    if source.size > limit:
        raise ArtifactDamaged(f"{what} has {source.size} bytes, more than the {limit} that are read")
    return read_exactly(source, 0, source.size)


def fill(source: Source, offset: int, target: memoryview) -> int:
    """Read into an existing buffer; return the number of bytes, smaller only at the end of the source."""
    read_into = getattr(source, "read_into", None)
    if read_into is not None:
        return int(read_into(offset, target))
    data = source.read(offset, len(target))
    target[: len(data)] = data
    return len(data)


def fill_exactly(source: Source, offset: int, target: memoryview) -> None:
    """Fill an existing buffer; raises ArtifactDamaged if the source ends early."""
    done = fill(source, offset, target)
    if done != len(target):
        raise ArtifactDamaged(f"it ends at byte {offset + done}, before byte {offset + len(target)}")


class SourceStream(io.RawIOBase):
    """A source as a seekable file object, for zipfile, tarfile and the like."""

    def __init__(self, source: Source):
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("a negative place")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, target: Buffer) -> int:
        done = fill(self._source, self._position, memoryview(target).cast("B"))
        self._position += done
        return done


def open_file(path: Path, flags: int = 0) -> FileSource:
    """Open a regular file, following symbolic links; never blocks on a pipe."""
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
    """Return the regular files beside a file; links are not followed, and opened files stay open."""

    def find(name: str) -> FileSource | None:
        with suppress(ArtifactNotReadable):
            return open_file(path.parent / name, os.O_NOFOLLOW)
        return None

    return Siblings(path.name, find)


class ForwardReader:
    """Reads a source from front to back; long stretches can be skipped and returned as slices."""

    def __init__(self, source: Source, what: str):
        """`what` names the source in error messages."""
        self.source, self.what = source, what
        self.longest_line, self.room = sys.maxsize - 1, sys.maxsize  # bytes that may still be read, not skipped
        self._file = io.BufferedReader(SourceStream(source), BLOCK)

    @property
    def at(self) -> int:
        return self._file.tell()

    def read(self, length: int) -> bytes:
        """Return the next `length` bytes; raises ArtifactDamaged if there are fewer."""
        self.hold(length)
        data = self._file.read(length)
        if len(data) < length:
            raise ArtifactDamaged(f"{self.what} ends at byte {self.at}, {length - len(data)} bytes too early")
        return data

    def readline(self) -> bytes:
        """Return the next line with its line feed."""
        line = self._file.readline(self.longest_line + 1)
        self.hold(len(line))
        if not line.endswith(b"\n"):
            is_long = len(line) > self.longest_line
            problem = "has a line that is too long before" if is_long else "ends within a line at"
            raise ArtifactDamaged(f"{self.what} {problem} byte {self.at}")
        return line

    def skip(self, length: int) -> Source:
        """Skip the next bytes; return them as a source."""
        at, size = self.at, self.source.size
        if length > size - at:
            raise ArtifactDamaged(f"{length} bytes are to follow byte {at} of {self.what}, but {size - at} do")
        self._file.seek(at + length)
        return piece(self.source, at, length)

    def hold(self, length: int) -> None:
        """Count bytes kept in memory; raises ArtifactDamaged beyond the limit."""
        self.room -= length
        if self.room < 0:
            raise ArtifactDamaged(f"the strings of {self.what} come to more than are read")


def lines(source: Source, longest: int) -> Iterator[str]:
    """Yield the lines of a text, line ends included."""
    file = io.BufferedReader(SourceStream(source), BLOCK)
    while line := file.readline(longest + 1):
        if len(line) > longest:
            raise ArtifactDamaged(f"a line has more than {longest} bytes")
        yield line.decode("utf-8", "surrogateescape")
