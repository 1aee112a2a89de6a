"""The sums that TensorFlow keeps of its bytes: CRC-32C, masked, since sums of sums are of little use."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit import native
from reprokit.artifacts.elements import Limits, Source
from reprokit.artifacts.formats.protobuf import Wire
from reprokit.artifacts.sources import BytesSource, read_exactly
from reprokit.errors import ArtifactDamaged

_MASK_DELTA = 0xA282EAD8
FOOTER, MAGIC = 48, bytes.fromhex("57fb808b247547db")
_TRAILER = 5  # behind each block: how it is compressed, and its sum
_STORED = 0  # which blocks of checkpoint V2 always are
MOST_DIMENSIONS = 254


def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the CRC-32C of bytes that follow on those whose sum is crc."""
    ffi, library = native.artifacts()
    return int(library.rka_crc32c(crc, ffi.from_buffer(data), len(data)))


def masked(crc: int) -> int:
    """Return a sum as it is stored."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def unmasked(stored: int) -> int:
    """Return the sum that is stored so."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def entries(source: Source, limits: Limits) -> Iterator[tuple[bytes, bytes]]:
    """Yield all keys with their values, which must ascend."""
    footer = read_exactly(source, max(0, source.size - FOOTER), min(FOOTER, source.size))
    if not footer.endswith(MAGIC):
        raise ArtifactDamaged("it does not end like a table")
    more, at = _handle(footer, limits)
    index, _ = _handle(footer, limits, at)
    if any(True for _ in _block(source, more, limits)):
        raise ArtifactDamaged("it has blocks besides its values, which are not known")
    before, end = None, 0
    for bound, place in _block(source, index, limits):
        handle, _ = _handle(place, limits)
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
    wire, at, key = Wire(BytesSource(data), limits), 0, b""
    while at < end:
        shared, at = wire.varint(at, end)
        own, at = wire.varint(at, end)
        length, at = wire.varint(at, end)
        if shared > len(key) or at + own + length > end:
            raise ArtifactDamaged("a block is damaged")
        key = key[:shared] + data[at : at + own]
        at += own
        yield key, data[at : at + length]
        at += length


def _checked(source: Source, at: int, size: int, limits: Limits) -> bytes:
    """Return the bytes of a block, whose sum is checked."""
    if size > limits.header:
        raise ArtifactDamaged(f"a block is said to have {size} bytes")
    data = read_exactly(source, at, size + _TRAILER)
    if crc32c(data[: size + 1]) != unmasked(int.from_bytes(data[size + 1 :], "little")):
        raise ArtifactDamaged(f"the block at byte {at} has another CRC-32C than it says")
    if data[size] != _STORED:
        raise ArtifactDamaged(f"the block at byte {at} is compressed by method {data[size]}, which is not known")
    return data[:size]


def _handle(data: bytes, limits: Limits, at: int = 0) -> tuple[tuple[int, int], int]:
    """Return where a block stands and how many bytes it has, and where that ends."""
    wire = Wire(BytesSource(data), limits)
    start, at = wire.varint(at, len(data))
    size, at = wire.varint(at, len(data))
    return (start, size), at


def decoded(key: bytes) -> str:
    """Return a key as NAME[START:STOP, ...]; one that is none of these as it stands."""
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
    """Return a number behind the count of its bytes."""
    end = at + 1 + key[at]
    if end > len(key) or key[at] > 8:
        raise ArtifactDamaged("a number of a key is cut short")
    return int.from_bytes(key[at + 1 : end], "big"), end


def _text(key: bytes, at: int) -> tuple[str, int]:
    """Return a text up to its end, which is 0 1; 0 and 255 in it are followed by the other one."""
    found = bytearray()
    while True:
        byte, after = key[at], key[at + 1] if key[at] in (0, 255) else 0
        if byte not in (0, 255):
            found.append(byte)
            at += 1
        elif (byte, after) == (0, 1):
            return found.decode("utf-8", "backslashreplace"), at + 2
        elif byte + after == 255:
            found.append(byte)
            at += 2
        else:
            raise ArtifactDamaged("a text of a key is damaged")


def _signed(key: bytes, at: int) -> tuple[int, int]:
    """Return a number whose first bits say how many bytes it has; all are inverted where it is negative."""
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
