"""Sorted tables of keys and values, as LevelDB and TensorFlow's checkpoints have them.

See https://github.com/google/leveldb/blob/main/doc/table_format.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Source
from reprokit.artifacts.formats.crc32c import crc32c, unmasked
from reprokit.artifacts.sources import exactly
from reprokit.errors import ArtifactDamaged

FOOTER, MAGIC = 48, bytes.fromhex("57fb808b247547db")
_TRAILER = 5  # behind each block: how it is compressed, and its sum
_STORED = 0  # which blocks of checkpoint V2 always are


def entries(source: Source, limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    """All keys with their values, which must ascend."""
    footer = exactly(source, max(0, source.size - FOOTER), min(FOOTER, source.size))
    if not footer.endswith(MAGIC):
        raise ArtifactDamaged("it does not end like a table")
    more, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    if any(True for _ in _block(source, more, limits)):
        raise ArtifactDamaged("it has blocks besides its values, which are not known")
    before, end = None, 0
    for bound, place in _block(source, index, limits):
        handle, _ = _handle(place, 0)
        if handle[0] < end:
            raise ArtifactDamaged("its blocks do not follow one another")
        end = sum(handle)
        for key, value in _block(source, handle, limits):
            if (before is not None and key <= before) or key > bound:
                raise ArtifactDamaged("its keys are not in order")
            before = key
            yield key, value


def _block(source: Source, handle: tuple[int, int], limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    data = _checked(source, *handle, limits)
    if len(data) < 4:
        raise ArtifactDamaged("a block is cut short")
    restarts = int.from_bytes(data[-4:], "little")
    end = len(data) - 4 - 4 * restarts
    if end < 0:
        raise ArtifactDamaged("a block is damaged")
    at, key = 0, b""
    while at < end:
        shared, at = varint(data, at)
        own, at = varint(data, at)
        length, at = varint(data, at)
        if shared > len(key) or at + own + length > end:
            raise ArtifactDamaged("a block is damaged")
        key = key[:shared] + data[at : at + own]
        at += own
        yield key, data[at : at + length]
        at += length


def _checked(source: Source, at: int, size: int, limits: Limits) -> bytes:
    """The bytes of a block, whose sum is checked."""
    if size > limits.header:
        raise ArtifactDamaged(f"a block is said to have {size} bytes")
    data = exactly(source, at, size + _TRAILER)
    if crc32c(data[: size + 1]) != unmasked(int.from_bytes(data[size + 1 :], "little")):
        raise ArtifactDamaged(f"the block at byte {at} has another CRC-32C than it says")
    if data[size] != _STORED:
        raise ArtifactDamaged(f"the block at byte {at} is compressed by method {data[size]}, which is not known")
    return data[:size]


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    start, at = varint(data, at)
    size, at = varint(data, at)
    return (start, size), at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ArtifactDamaged("a number of its table is damaged")
