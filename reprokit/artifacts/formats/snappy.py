"""Snappy's blocks, within bounds; see https://github.com/google/snappy/blob/main/format_description.txt."""

from __future__ import annotations

from reprokit.errors import ArtifactDamaged


def unpacked(data: bytes, most: int) -> bytes:
    """What a block unpacks to."""
    size, at = _size(data)
    if size > most or size > 64 * len(data):
        raise ArtifactDamaged(f"{len(data)} bytes are said to unpack to {size}")
    found = bytearray()
    while at < len(data):
        at = _element(data, at, found)
        if len(found) > size:
            break
    if len(found) != size:
        raise ArtifactDamaged("a compressed block is damaged")
    return bytes(found)


def _size(data: bytes) -> tuple[int, int]:
    value = 0
    for at, byte in enumerate(data[:5]):
        value |= (byte & 127) << 7 * at
        if byte < 128:
            return value, at + 1
    raise ArtifactDamaged("a compressed block does not say its size")


def _element(data: bytes, at: int, found: bytearray) -> int:
    """Add a literal or a copy of what came before; where it ends."""
    tag = data[at]
    kind, length = tag & 3, tag >> 2
    at += 1
    if kind == 0:
        more = max(0, length - 59)
        length = 1 + (int.from_bytes(data[at : at + more], "little") if more else length)
        if at + more + length > len(data):
            raise ArtifactDamaged("a compressed block is cut short")
        found += data[at + more : at + more + length]
        return at + more + length
    more = {1: 1, 2: 2, 3: 4}[kind]
    if at + more > len(data):
        raise ArtifactDamaged("a compressed block is cut short")
    offset = int.from_bytes(data[at : at + more], "little") + ((tag >> 5) << 8 if kind == 1 else 0)
    _copy(found, offset, 4 + (length & 7) if kind == 1 else 1 + length)
    return at + more


def _copy(found: bytearray, offset: int, length: int) -> None:
    """Repeat what stands so far back, which may reach into what is being written."""
    if not 0 < offset <= len(found):
        raise ArtifactDamaged("a compressed block refers to before its beginning")
    again = found[-offset:][:length]
    found += (again * (length // len(again) + 1))[:length]
