"""Reads the wire format of Protocol Buffers: fields by number, without generated code.

See https://protobuf.dev/programming-guides/encoding/. The obsolete groups are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Source
from reprokit.diff.sources import read_exactly

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SIZES = {FIXED64: 8, FIXED32: 4}
BUFFER = 1 << 16  # bytes per read
LONGEST_VARINT = 10
MOST_NUMBERS = 1 << 22  # varints in one packed field
FIELDS_PER_PART = 100  # largest number of fields for each part that Limits allows


class Field(NamedTuple):
    """One field of a message."""

    number: int
    kind: int  # the wire type
    value: int  # the bits of a number, or the number of bytes
    at: int  # the offset of its bytes

    @property
    def end(self) -> int:
        """The offset of the end of its bytes."""
        return self.at + self.value


class WireReader:
    """Reads the messages in a source through a buffer."""

    def __init__(self, source: Source, limits: Limits):
        self.source = source
        self._fields_left = FIELDS_PER_PART * limits.parts
        self._data, self._start = b"", 0

    def fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message between two offsets, in order."""
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise ArtifactDamaged("its messages have more fields than are read")
            tag, at = self.varint(at, end)
            field = self._field(tag, at, end)
            at = field.end if field.kind == BYTES else field.at
            yield field

    def last(self, at: int, end: int, number: int) -> int:
        """Return the bits of the last number in a field; 0, the default, if there is none."""
        values = [field.value for field in self.fields(at, end) if field.number == number and field.kind != BYTES]
        return values[-1] if values else 0

    def _field(self, tag: int, at: int, end: int) -> Field:
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ArtifactDamaged(f"before byte {at}: no field has the number {number}")
        if kind == VARINT:
            return Field(number, kind, *self.varint(at, end))
        if kind == BYTES:
            size, at = self.varint(at, end)
            if size > end - at:
                raise ArtifactDamaged(f"a field at byte {at} has {size} bytes, its message {end - at}")
            return Field(number, kind, size, at)
        if kind not in SIZES:
            raise ArtifactDamaged(f"before byte {at}: no field that is read is of the kind {kind}")
        size = SIZES[kind]
        if size > end - at:
            raise ArtifactDamaged(f"a message ends at byte {end}, within a number")
        return Field(number, kind, int.from_bytes(self.take(at, size), "little"), at + size)

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a varint, and the offset of its end."""
        value = 0
        data = self._buffered(at, min(end, at + LONGEST_VARINT))
        position = at - self._start
        for shift in range(0, 7 * min(LONGEST_VARINT, max(0, end - at)), 7):
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value >> 64:
                    break
                return value, self._start + position
        raise ArtifactDamaged(f"at byte {at} there should be a number")

    def _buffered(self, at: int, end: int) -> bytes:
        """Return the buffer, refilled if these bytes are not in it."""
        if at < self._start or end > self._start + len(self._data):
            length = min(max(BUFFER, end - at), max(0, self.source.size - at))
            self._data, self._start = read_exactly(self.source, at, length), at
            if end > at + length:
                raise ArtifactDamaged(f"it ends at byte {self.source.size}, within a message")
        return self._data

    def take(self, at: int, size: int) -> bytes:
        """Return bytes at an offset, buffered if they are few."""
        if size > BUFFER:
            return read_exactly(self.source, at, size)
        data = self._buffered(at, at + size)
        return data[at - self._start : at - self._start + size]

    def content(self, field: Field) -> bytes:
        """Return the bytes of a length-delimited field."""
        return self.take(field.at, field.value)


def signed(value: int) -> int:
    """Return the signed value of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """Decode a zigzag number, whose sign is in its lowest bit."""
    return value >> 1 ^ -(value & 1)


def single(bits: int) -> float:
    """Return the float32 of these bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def double(bits: int) -> float:
    """Return the float64 of these bits."""
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def packed_varints(wire: WireReader, field: Field) -> Iterator[int]:
    """Yield the numbers of a packed field."""
    at, end, count = field.at, field.end, 0
    while at < end:
        count += 1
        if count > MOST_NUMBERS:
            raise ArtifactDamaged(f"a field has more than {MOST_NUMBERS} numbers")
        value, at = wire.varint(at, end)
        yield value
