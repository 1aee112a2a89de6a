"""Compressed bytes as a source: unpacked when they are read, into a file without a name, within bounds."""

from __future__ import annotations

import bz2
import codecs
import errno
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from reprokit.artifacts.elements import Limits, Siblings, Source
from reprokit.artifacts.sources import BLOCK, blocks, exactly
from reprokit.errors import ArtifactDamaged

HEAD = 1 << 16  # bytes from the beginning that are read without unpacking all
HARMLESS = 256 << 20  # bytes that anything may unpack to
IN_MEMORY = 1 << 20
FIRST = 512  # bytes that a stream gets at first: of many short ones each would be given all that follow
LZMA_MEMORY = 128 << 20

DEFLATED, GZIP, BZIP2, XZ, ZLIB = "deflate", "gzip", "bzip2", "xz", "zlib"
AS_TEXT = "text"  # bytes as text, of which those from 0x80 on take two bytes of UTF-8


class _Decompressor(Protocol):
    """What bz2 and lzma have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Zlib:
    """zlib's decompressor with the interface of the others."""

    def __init__(self, window: int):
        self._inner = zlib.decompressobj(window)
        self._full = False  # the last piece was cut at max_length: there may be more without further input

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._full

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        found = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._full = bool(self._inner.unconsumed_tail) or len(found) == max_length
        return found


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    DEFLATED: lambda: _Zlib(-15),
    GZIP: lambda: _Zlib(31),
    ZLIB: lambda: _Zlib(15),
    BZIP2: bz2.BZ2Decompressor,
    XZ: lambda: lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=LZMA_MEMORY),
}
_SEVERAL = (GZIP, BZIP2, XZ)  # whose files may be several streams, one behind the other


class Unpacked:
    """What compressed bytes unpack to; release() gives the disk back, and a later read unpacks again."""

    def __init__(self, packed: Source, method: str, limits: Limits, size: int | None = None, crc: int | None = None):
        self.packed, self.method = packed, method
        self._limits, self._size, self._crc = limits, size, crc
        self._file: IO[bytes] | None = None
        self.beside: Siblings | None = None
        if size is not None:
            self._check_size(size)

    @property
    def size(self) -> int:
        if self._size is None:
            self._open()
        assert self._size is not None
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        if self._file is None and self._size is not None and self._size > IN_MEMORY and offset + length <= HEAD:
            return self._head(offset + length)[offset:]
        file = self._open()
        file.seek(offset)
        return file.read(max(0, min(length, self.size - offset)))

    def release(self) -> None:
        """Forget what was unpacked."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _head(self, length: int) -> bytes:
        found = b""
        for block in unpacked_blocks(self.packed, self.method):
            found += block
            if len(found) >= length:
                break
        return found[:length]

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115
            try:
                self._fill(self._file)
            except BaseException:
                self.release()
                raise
        return self._file

    def _fill(self, file: IO[bytes]) -> None:
        size = crc = 0
        for block in unpacked_blocks(self.packed, self.method):
            size += len(block)
            crc = zlib.crc32(block, crc)
            self._check_size(size)
            self._limits.spent.unpacked += len(block)
            if self._limits.spent.unpacked > self._limits.unpacked:
                raise ArtifactDamaged(f"it unpacks to more than {self._limits.unpacked} bytes in all")
            write(file, block)
        if (self._size is not None and size != self._size) or (self._crc is not None and crc != self._crc):
            raise ArtifactDamaged("what it unpacks to has another size or check sum than it says")
        self._size = size

    def _check_size(self, size: int) -> None:
        if self._size is not None and size > self._size:
            raise ArtifactDamaged(f"it unpacks to more than the {self._size} bytes that it says")
        if size > HARMLESS and size > self._limits.ratio * self.packed.size:
            raise ArtifactDamaged(f"{self.packed.size} bytes unpack to more than {self._limits.ratio} times as many")


def unpacked_blocks(packed: Source, method: str) -> Iterator[bytes]:
    """Yield what a source unpacks to; raises ArtifactDamaged behind the last good block."""
    try:
        yield from _of_text(packed) if method == AS_TEXT else _decompressed(packed, method)
    except (zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
        raise ArtifactDamaged(f"its compressed bytes are damaged ({error})") from None
    except OSError as error:  # what bz2 raises for damage has no number
        if error.errno is not None:
            raise
        raise ArtifactDamaged(f"its compressed bytes are damaged ({error})") from None


def write(file: IO[bytes], block: bytes) -> None:
    """Add to what is unpacked, as long as there is room."""
    try:
        file.write(block)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ArtifactDamaged(f"there is no room to unpack it in {tempfile.gettempdir()}: set TMPDIR") from None


def _of_text(packed: Source) -> Iterator[bytes]:
    """Yield the bytes that a text of characters below U+0100 stands for."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in blocks(packed):
            yield decoder.decode(block).encode("latin-1")
        yield decoder.decode(b"", True).encode("latin-1")
    except UnicodeError:
        raise ArtifactDamaged("bytes written as text are cut, or have characters beyond U+00FF") from None


def _decompressed(packed: Source, method: str) -> Iterator[bytes]:
    """Yield what all the streams of a source unpack to, in blocks."""
    at = 0
    while True:
        decompressor = _DECOMPRESSORS[method]()
        piece = FIRST
        while not decompressor.eof:
            data = b""
            if decompressor.needs_input:
                if at >= packed.size:
                    raise ArtifactDamaged("its compressed bytes end early")
                data = exactly(packed, at, min(piece, packed.size - at))
                at += len(data)
                piece = min(2 * piece, BLOCK)
            if block := decompressor.decompress(data, BLOCK):
                yield block
        at -= len(decompressor.unused_data)
        if at >= packed.size:
            return
        if method not in _SEVERAL:
            raise ArtifactDamaged("there are bytes behind its compressed ones")
