"""Files that hold one compressed file: gzip, bzip2 and xz."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.decompression import BZIP2, GZIP, XZ, Unpacked
from reprokit.artifacts.elements import Limits, Noise, Part, Source, Within
from reprokit.artifacts.sources import exactly

_EXTRA, _NAME = 4, 8
LONGEST_NAME = 1024


def gzip(source: Source, limits: Limits) -> Iterator[Part]:
    """The file within; date, name and system in the head of its first member are its own."""
    head = exactly(source, 0, min(source.size, 10 + LONGEST_NAME))
    yield Noise("time stamp", head[4:8].hex())
    yield Noise("compression level and system", head[8:10].hex())
    if head[3] & _NAME and not head[3] & _EXTRA:
        yield Noise("file name", head[10:].split(b"\0")[0].decode("latin-1"))
    yield Within("", Unpacked(source, GZIP, limits))


def bzip2(source: Source, limits: Limits) -> Iterator[Part]:
    """The file within."""
    yield Within("", Unpacked(source, BZIP2, limits))


def xz(source: Source, limits: Limits) -> Iterator[Part]:
    """The file within."""
    yield Within("", Unpacked(source, XZ, limits))
