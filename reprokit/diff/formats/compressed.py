"""Reads files with one compressed file: gzip, bzip2, xz, and joblib's use of zlib and LZMA streams."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.decompression import BZIP2, GZIP, XZ, ZLIB, UnpackedSource
from reprokit.diff.elements import Limits, NestedFile, Noise, Part, Source
from reprokit.diff.formats.zip import outside_value
from reprokit.diff.sources import read_exactly

_EXTRA, _NAME, _COMMENT = 4, 8, 16
LONGEST_HEAD = 1 << 17
LZ4 = b"\x04\x22\x4d\x18"
OLD = b"ZF"
LZMA = b"\x5d\x00\x00"


def gzip(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the nested file; time, name and system in the header are noise, other fields count like content."""
    head = read_exactly(source, 0, min(source.size, 10 + LONGEST_HEAD))
    yield Noise("time stamp", head[4:8].hex())
    yield Noise("compression level and system", head[8:10].hex())
    rest = head[10:]
    if head[3] & _EXTRA:
        size = 2 + int.from_bytes(rest[:2], "little")
        yield from outside_value("extra field", rest[2:size])
        rest = rest[size:]
    if head[3] & _NAME:
        name, _, rest = rest.partition(b"\0")
        yield Noise("file name", name.decode("latin-1"))
    if head[3] & _COMMENT:
        yield from outside_value("comment", rest.partition(b"\0")[0])
    yield NestedFile("", UnpackedSource(source, GZIP, limits))


def bzip2(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the nested file."""
    yield NestedFile("", UnpackedSource(source, BZIP2, limits))


def xz(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the nested file."""
    yield NestedFile("", UnpackedSource(source, XZ, limits))


def joblib(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the nested pickle; other files of joblib are plain pickles, or gzip, bzip2 and xz files."""
    head = source.read(0, 4)
    if head.startswith(LZ4):
        raise ArtifactDamaged(
            "it is compressed by lz4, which Python cannot unpack: write it with zlib, xz or not at all"
        )
    if head.startswith(OLD):
        raise ArtifactDamaged("it is of joblib before 0.10, whose format is not read: load and dump it anew")
    lzma = head.startswith(LZMA)
    yield Noise("(compression)", "lzma" if lzma else f"zlib {head[1:2].hex()}")
    yield NestedFile("content", UnpackedSource(source, XZ if lzma else ZLIB, limits))
