"""joblib's files that are compressed in ways of which no tool has files of its own; others are pickles and archives."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.decompression import XZ, ZLIB, Unpacked
from reprokit.artifacts.elements import Limits, Noise, Part, Source, Within
from reprokit.errors import ArtifactDamaged

LZ4 = b"\x04\x22\x4d\x18"
OLD = b"ZF"
LZMA = b"\x5d\x00\x00"


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The pickle within."""
    head = source.read(0, 4)
    if head.startswith(LZ4):
        raise ArtifactDamaged(
            "it is compressed by lz4, which Python cannot unpack: write it with zlib, xz or not at all"
        )
    if head.startswith(OLD):
        raise ArtifactDamaged("it is of joblib before 0.10, whose format is not read: load and dump it anew")
    lzma = head.startswith(LZMA)
    yield Noise("(compression)", "lzma" if lzma else f"zlib {head[1:2].hex()}")
    yield Within("content", Unpacked(source, XZ if lzma else ZLIB, limits))
