"""gzip: what it unpacks to; its date, name and system are its own."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.parts import Limits, Noise, Part, Source, Within
from reprokit.artifacts.sources import exactly
from reprokit.artifacts.unpacked import GZIP, Unpacked

_EXTRA, _NAME = 4, 8
LONGEST_NAME = 1024


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The file within, and the noise of the head of its first member."""
    head = exactly(source, 0, min(source.size, 10 + LONGEST_NAME))
    yield Noise("time stamp", head[4:8].hex())
    yield Noise("compression level and system", head[8:10].hex())
    if head[3] & _NAME and not head[3] & _EXTRA:
        yield Noise("file name", head[10:].split(b"\0")[0].decode("latin-1"))
    yield Within("", Unpacked(source, GZIP, limits))
