"""Reads the sorted string tables (LevelDB) in which TensorFlow stores checkpoints, and its masked CRC-32C."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core import native
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Source
from reprokit.diff.formats.protobuf import WireReader
from reprokit.diff.sources import BytesSource, read_exactly

_MASK_DELTA = 0xA282EAD8
FOOTER, MAGIC = 48, bytes.fromhex("57fb808b247547db")
_TRAILER = 5  # bytes after each block: the compression method and the checksum
_STORED = 0  # no compression, as always in checkpoint V2
MOST_DIMENSIONS = 254


def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the CRC-32C of bytes, continued from that of the preceding bytes."""
    ffi, library = native.artifacts()
    return int(library.rka_crc32c(crc, ffi.from_buffer(data), len(data)))


def masked(crc: int) -> int:
    """Return a checksum as it is stored (rotated, plus a constant)."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def unmasked(stored: int) -> int:
    """Return the checksum of a stored value."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def entries(source: Source, limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    """Yield all keys, which must ascend, with their values."""
    footer = read_exactly(source, max(0, source.size - FOOTER), min(FOOTER, source.size))
    if not footer.endswith(MAGIC):
        raise ArtifactDamaged("it does not end like a table")
    meta_index, at = _handle(footer, limits)
    index, _ = _handle(footer, limits, at)
    if any(True for _ in _block(source, meta_index, limits)):
        raise ArtifactDamaged("it has blocks besides its values, which are not known")
    previous_key, end = None, 0
    for bound, encoded_handle in _block(source, index, limits):
        handle, _ = _handle(encoded_handle, limits)
        if handle[0] < end:
            raise ArtifactDamaged("its blocks do not follow one another")
        end = sum(handle)
        for key, value in _block(source, handle, limits):
            if (previous_key is not None and key <= previous_key) or key > bound:
                raise ArtifactDamaged("its keys are not in order")
            previous_key = key
            yield key, value


def _block(source: Source, handle: tuple[int, int], limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    data = _checked(source, *handle, limits)
    if len(data) < 4:
        raise ArtifactDamaged("a block is cut short")
    restarts = int.from_bytes(data[-4:], "little")
    end = len(data) - 4 - 4 * restarts
    if end < 0:
        raise ArtifactDamaged("a block is damaged")
    wire, at, key = WireReader(BytesSource(data), limits), 0, b""
    while at < end:
        shared, at = wire.varint(at, end)
        suffix, at = wire.varint(at, end)
        length, at = wire.varint(at, end)
        if shared > len(key) or at + suffix + length > end:
            raise ArtifactDamaged("a block is damaged")
        key = key[:shared] + data[at : at + suffix]
        at += suffix
        yield key, data[at : at + length]
        at += length


def _checked(source: Source, at: int, size: int, limits: Limits) -> bytes:
    """Return the bytes of a block after a check of its checksum."""
    if size > limits.header:
        raise ArtifactDamaged(f"a block is said to have {size} bytes")
    data = read_exactly(source, at, size + _TRAILER)
    if crc32c(data[: size + 1]) != unmasked(int.from_bytes(data[size + 1 :], "little")):
        raise ArtifactDamaged(f"the block at byte {at} has another CRC-32C than it says")
    if data[size] != _STORED:
        raise ArtifactDamaged(f"the block at byte {at} is compressed by method {data[size]}, which is not known")
    return data[:size]


def _handle(data: bytes, limits: Limits, at: int = 0) -> tuple[tuple[int, int], int]:
    """Return offset and size of a block, and the offset of the end of the handle."""
    wire = WireReader(BytesSource(data), limits)
    start, at = wire.varint(at, len(data))
    size, at = wire.varint(at, len(data))
    return (start, size), at


def decoded(key: bytes) -> str:
    """Decode the key of a slice as NAME[START:STOP, ...]; other keys as a Python literal."""
    try:
        zero, at = _increasing(key, 0)
        name, at = _text(key, at)
        rank, at = _increasing(key, at)
        if zero or rank > MOST_DIMENSIONS:
            return repr(key)
        texts = []
        for _ in range(rank):
            start, at = _signed(key, at)
            length, at = _signed(key, at)
            texts.append(":" if (start, length) == (0, -1) else f"{start}:{start + length}")
        return f"{name}[{', '.join(texts)}]" if at == len(key) else repr(key)
    except (ArtifactDamaged, IndexError):
        return repr(key)


def _increasing(key: bytes, at: int) -> tuple[int, int]:
    """Decode a number that follows the count of its bytes."""
    end = at + 1 + key[at]
    if end > len(key) or key[at] > 8:
        raise ArtifactDamaged("a number of a key is cut short")
    return int.from_bytes(key[at + 1 : end], "big"), end


def _text(key: bytes, at: int) -> tuple[str, int]:
    """Decode a text that ends with 0 1; bytes 0 and 255 in it are escaped by the other one after them."""
    text = bytearray()
    while True:
        byte, next_byte = key[at], key[at + 1] if key[at] in (0, 255) else 0
        if byte not in (0, 255):
            text.append(byte)
            at += 1
        elif (byte, next_byte) == (0, 1):
            return text.decode("utf-8", "backslashreplace"), at + 2
        elif byte + next_byte == 255:
            text.append(byte)
            at += 2
        else:
            raise ArtifactDamaged("a text of a key is damaged")


def _signed(key: bytes, at: int) -> tuple[int, int]:
    """Decode a number whose leading bits give its length; negative numbers have all bits inverted."""
    mask = 0 if key[at] & 0x80 else 0xFF
    first = int.from_bytes(bytes(byte ^ mask for byte in key[at : at + 2]), "big") << (8 if at + 1 == len(key) else 0)
    length = 1
    while length < 10 and first >> (15 - length) & 1:
        length += 1
    data = bytes(byte ^ mask for byte in key[at : at + length])
    if len(data) < length:
        raise ArtifactDamaged("a number of a key is cut short")
    value = int.from_bytes(data, "big") & ((1 << (7 * length - 1)) - 1)
    return (~value if mask else value), at + length
