"""Reads the tables of 64-bit ELF files: programs and libraries, which may be damaged or hostile."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAX_ENTRIES = 4096  # sections or segments of one file
LARGEST = 1 << 62  # offset or size that can be true
MAX_NAMES = 1 << 20  # bytes of the sections' names
LOADED, WRITABLE = 1, 2  # PT_LOAD, PF_W
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")


class ElfHeader(NamedTuple):
    """The places of an ELF file's tables."""

    machine: int
    segments: int  # offset
    segment_count: int
    sections: int
    section_count: int
    names: int  # number of the section with the names of all


class ElfSegment(NamedTuple):
    """A part of the file that is loaded, or else used at the start."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int


class ElfSection(NamedTuple):
    """A section of the file."""

    name: int  # offset in the section of names
    kind: int
    flags: int
    offset: int
    size: int


def header(file: BinaryIO) -> ElfHeader | None:
    """Return the head of a little-endian 64-bit ELF file; None for any other file."""
    data = os.pread(file.fileno(), _HEADER.size, 0)
    if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        return None
    fields = _HEADER.unpack(data)
    return ElfHeader(fields[2], fields[5], fields[10], fields[6], fields[12], fields[13])


def segments(file: BinaryIO, head: ElfHeader) -> Iterator[ElfSegment]:
    """Yield the segments whose place is possible."""
    for kind, flags, offset, address, _, size, *_ in _entries(file, head.segments, head.segment_count, _SEGMENT):
        if max(offset, size) < LARGEST:
            yield ElfSegment(kind, flags, offset, address, size)


def sections(file: BinaryIO, head: ElfHeader) -> Iterator[ElfSection]:
    """Yield all sections, as they are named by their numbers; one at an impossible place is empty."""
    for name, kind, flags, _, offset, size, *_ in _entries(file, head.sections, head.section_count, _SECTION):
        is_possible = max(offset, size) < LARGEST
        yield ElfSection(name, kind, flags, offset if is_possible else 0, size if is_possible else 0)


def section_named(file: BinaryIO, head: ElfHeader, name: bytes) -> ElfSection | None:
    """Return the section of this name, if the file has it."""
    found = list(sections(file, head))
    if head.names >= len(found):
        return None
    names = os.pread(file.fileno(), min(found[head.names].size, MAX_NAMES), found[head.names].offset)
    return next((each for each in found if names[each.name :].startswith(name + b"\0")), None)


def _entries(file: BinaryIO, offset: int, count: int, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    data = os.pread(file.fileno(), min(count, MAX_ENTRIES) * entry.size, offset) if 0 < offset < LARGEST else b""
    yield from entry.iter_unpack(data[: len(data) // entry.size * entry.size])
