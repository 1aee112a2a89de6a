"""Compressed bytes as a source: unpacked on first read into an unnamed temporary file, within limits."""

from __future__ import annotations

import bz2
import codecs
import errno
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Siblings, Source
from reprokit.diff.sources import BLOCK, blocks, read_exactly

HEAD = 1 << 16  # bytes at the beginning that can be read without unpacking everything
HARMLESS = 256 << 20  # bytes that a source may unpack to whatever its compression ratio
IN_MEMORY = 1 << 20
FIRST = 512  # bytes of the first input to a stream: many short streams must not each be given a full block
LZMA_MEMORY = 128 << 20

DEFLATED, GZIP, BZIP2, XZ, ZLIB = "deflate", "gzip", "bzip2", "xz", "zlib"
AS_TEXT = "text"  # bytes written as Latin-1 text in UTF-8: bytes from 0x80 on take two


class _Decompressor(Protocol):
    """The common interface of the decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Zlib:
    """Adapts zlib's decompressor to the interface of the others."""

    def __init__(self, window: int):
        self._decompressor = zlib.decompressobj(window)
        self._has_more_output = False  # the last output was cut at max_length: more may follow without further input

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    @property
    def needs_input(self) -> bool:
        return not self._has_more_output

    @property
    def unused_data(self) -> bytes:
        return self._decompressor.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        block = self._decompressor.decompress(self._decompressor.unconsumed_tail + data, max_length)
        self._has_more_output = bool(self._decompressor.unconsumed_tail) or len(block) == max_length
        return block


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    DEFLATED: lambda: _Zlib(-15),
    GZIP: lambda: _Zlib(31),
    ZLIB: lambda: _Zlib(15),
    BZIP2: bz2.BZ2Decompressor,
    XZ: lambda: lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=LZMA_MEMORY),
}
_MULTI_STREAM = (GZIP, BZIP2, XZ)  # formats in which several streams may be concatenated


class UnpackedSource:
    """The unpacked content of a compressed source; release() frees the disk, a later read unpacks again."""

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
        """Delete the unpacked bytes."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _head(self, length: int) -> bytes:
        head = b""
        for block in unpacked_blocks(self.packed, self.method):
            head += block
            if len(head) >= length:
                break
        return head[:length]

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115
            try:
                self._unpack_into(self._file)
            except BaseException:
                self.release()
                raise
        return self._file

    def _unpack_into(self, file: IO[bytes]) -> None:
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
    """Yield the unpacked bytes in blocks; raises ArtifactDamaged after the last good block."""
    try:
        yield from _encoded_text(packed) if method == AS_TEXT else _decompressed(packed, method)
    except (zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
        raise ArtifactDamaged(f"its compressed bytes are damaged ({error})") from None
    except OSError as error:  # bz2 raises OSError without errno for damaged data
        if error.errno is not None:
            raise
        raise ArtifactDamaged(f"its compressed bytes are damaged ({error})") from None


def write(file: IO[bytes], block: bytes) -> None:
    """Write to a temporary file; raises ArtifactDamaged if the disk is full."""
    try:
        file.write(block)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ArtifactDamaged(f"there is no room to unpack it in {tempfile.gettempdir()}: set TMPDIR") from None


def _encoded_text(packed: Source) -> Iterator[bytes]:
    """Decode UTF-8 text of characters below U+0100; yield the bytes it represents."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in blocks(packed):
            yield decoder.decode(block).encode("latin-1")
        yield decoder.decode(b"", True).encode("latin-1")
    except UnicodeError:
        raise ArtifactDamaged("bytes written as text are cut, or have characters beyond U+00FF") from None


def _decompressed(packed: Source, method: str) -> Iterator[bytes]:
    """Yield the unpacked bytes of all concatenated streams, in blocks."""
    offset = 0
    while True:
        decompressor = _DECOMPRESSORS[method]()
        read_size = FIRST
        while not decompressor.eof:
            data = b""
            if decompressor.needs_input:
                if offset >= packed.size:
                    raise ArtifactDamaged("its compressed bytes end early")
                data = read_exactly(packed, offset, min(read_size, packed.size - offset))
                offset += len(data)
                read_size = min(2 * read_size, BLOCK)
            if block := decompressor.decompress(data, BLOCK):
                yield block
        offset -= len(decompressor.unused_data)
        if offset >= packed.size:
            return
        if method not in _MULTI_STREAM:
            raise ArtifactDamaged("there are bytes behind its compressed ones")
