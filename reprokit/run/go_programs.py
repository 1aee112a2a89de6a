"""Tells by which release of Go a program was built: before 1.22, Go's runtime seeds itself from the processor's ticks.

`runtime.mcommoninit` of Go up to 1.21 mixes AT_RANDOM with `cputicks()` for each of its threads: RDTSC on x86-64, the
monotonic clock on aarch64. The order of maps, `select`, hash/maphash and what else draws from `runtime.fastrand` begin
there, from Go 1.20 on also math/rand without a seed. Go 1.22 has AT_RANDOM alone (`runtime.randinit`), which repeats.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from reprokit.core.printable import listed
from reprokit.model.states import Uncovered
from reprokit.run import elf

REPEATS = (1, 22)  # the first release whose seeds repeat
UNKNOWN = "?"  # release of a program that is one of Go's, and does not say more
NAMED = 3  # programs in a sentence
_SECTION = b".go.buildinfo"
_MAGIC = b"\xff Go buildinf:"
_AREA = 64 << 10  # bytes of the data that have it, as Go's own debug/buildinfo looks
_LONGEST = 256  # bytes of a release's name
_IN_PLACE = 2  # flag: the texts follow (Go 1.18 and later), instead of addresses of them
_RELEASE = re.compile(rb"\bgo(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")


def release(file: BinaryIO, head: elf.ElfHeader) -> str:
    """Return the release of Go that built a program or library: "1.19.8", or UNKNOWN; empty if Go did not."""
    for offset, size in _areas(file, head):
        data = os.pread(file.fileno(), min(size, _AREA), offset)
        at = data.find(_MAGIC)
        if at >= 0:
            match = _RELEASE.search(_release_text(file, head, data[at:]))
            return match[1].decode() if match else UNKNOWN
    return ""


def _areas(file: BinaryIO, head: elf.ElfHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the section with Go's facts; of stripped programs, of what may hold it."""
    section = elf.section_named(file, head, _SECTION)
    if section is not None:
        yield section.offset, section.size
    elif not head.section_count:
        for segment in elf.segments(file, head):
            if segment.kind == elf.LOADED and segment.flags & elf.WRITABLE:
                yield segment.offset, segment.size


def _release_text(file: BinaryIO, head: elf.ElfHeader, facts: bytes) -> bytes:
    with suppress(struct.error, IndexError):
        if facts[15] & _IN_PLACE:
            return facts[32 : 32 + _LONGEST]  # after a length of one or two bytes
        order = ">" if facts[15] & 1 else "<"
        place = struct.Struct(f"{order}QQ" if facts[14] == 8 else f"{order}II")
        (pointer,) = struct.unpack_from(f"{order}{'Q' if facts[14] == 8 else 'I'}", facts, 16)
        text, length = place.unpack(_at_address(file, head, pointer, place.size))
        return _at_address(file, head, text, min(length, _LONGEST))
    return b""


def _at_address(file: BinaryIO, head: elf.ElfHeader, address: int, size: int) -> bytes:
    for segment in elf.segments(file, head):
        start = address - segment.address
        if segment.kind == elf.LOADED and 0 <= start < segment.size:
            return os.pread(file.fileno(), min(size, segment.size - start), segment.offset + start)
    return b""


def repeats(release_built_by: str) -> bool:
    """Return whether the seeds of a program that this release has built repeat."""
    parts = release_built_by.split(".")
    return release_built_by != UNKNOWN and (int(parts[0]), int(parts[1])) >= REPEATS


def uncovered(releases: dict[str, str]) -> Uncovered | None:
    """Return the source of the programs, by path, whose seeds do not repeat; None if there are none."""
    named = [
        f"{path} ({'Go, of no known release' if built_by == UNKNOWN else f'Go {built_by}'})"
        for path, built_by in sorted(releases.items())
        if built_by and not repeats(built_by)
    ]
    if not named:
        return None
    text = (
        f"{listed(named, NAMED)}: before 1.22, Go's runtime seeds the order of maps, select, hash/maphash and "
        "math/rand from the processor's ticks, which do not repeat; build with Go 1.22 or newer"
    )
    return Uncovered(source="ticks", text=text, module=named[0].rpartition(" (")[0])
