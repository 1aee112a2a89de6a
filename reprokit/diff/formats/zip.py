"""Reads zip archives by the central directory; the local headers must agree with it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.decompression import BZIP2, DEFLATED, UnpackedSource
from reprokit.diff.elements import Limits, NestedFile, Noise, Part, Siblings, Source, Value
from reprokit.diff.formats import refers
from reprokit.diff.sources import BytesSource, ChecksummedSource, blocks, piece, read_exactly

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_OVERFLOW, _OVERFLOW16 = 0xFFFFFFFF, 0xFFFF
_COMMENT = 0xFFFF  # bytes of the longest comment at the end
_ENCRYPTED, _SIZES_AFTER_DATA, _UTF8 = 0x1, 0x8, 0x800
_NEWEST_VERSION = 63  # newest supported version of the format, times ten
_LONG_SIZES = 0x0001
# Extra fields with times and owners (NTFS, UNIX), and those that only align what follows (PyTorch, Android).
_KNOWN_FIELDS = frozenset({_LONG_SIZES, 0x000A, 0x000D, 0x5455, 0x5855, 0x7855, 0x7875})
_PADDING = frozenset({0x0000, 0x4246, 0xD935})
_LONGEST_DESCRIPTOR = 24
OUTSIDE = "(other bytes outside of the members"
SHORT = 100  # bytes that are shown
_METHODS = {8: DEFLATED, 12: BZIP2}


@dataclass
class ZipMember:
    """A member: its entry in the central directory, and its content."""

    raw_name: bytes
    made_by: int
    flags: int
    method: int
    date: tuple[int, int]
    crc: int
    packed: int
    size: int
    attributes: tuple[int, int]
    start: int  # of its local header
    extra: bytes
    comment: bytes = b""
    local_extra: bytes = b""
    name: str = ""
    source: Source = field(default_factory=lambda: BytesSource(b""))
    end: int = 0

    @property
    def is_directory(self) -> bool:
        return self.name.endswith("/") and self.size == 0


@dataclass(frozen=True)
class ZipArchive:
    """An archive: its members in the order of the directory, and what it holds beside them."""

    members: list[ZipMember]
    outside: tuple[Value, ...]  # comments, fields of unknown meaning, and bytes that no header names

    def around(self) -> Iterator[Part]:
        """Yield the metadata of members as noise, then the bytes outside of them, which count like content."""
        yield from noise(self.members)
        yield from self.outside


class ZipDirectory(NamedTuple):
    """The directory of an archive: its place, and the bytes around it that it does not need."""

    entries: int
    start: int
    end: int
    comment: bytes
    extension: bytes  # of the record with long numbers


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield each member as a nested file."""
    return parts(open_archive(source, limits))


def parts(archive: ZipArchive) -> Iterator[Part]:
    """Yield the parts of an archive."""
    yield from archive.around()
    yield from map(part, archive.members)


def part(member: ZipMember) -> Part:
    """Return a member as a part."""
    if member.is_directory:
        return Value(member.name, "directory")
    return NestedFile(member.name, member.source, f"CRC-32 {member.crc:08x} of {member.source.size} bytes")


def noise(archive_members: Iterable[ZipMember]) -> Iterator[Noise]:
    """Yield digests of the metadata of members as noise."""
    members_by_name = sorted(archive_members, key=lambda member: member.name)
    yield Noise("time stamps", _digest(f"{m.date}" for m in members_by_name))
    yield Noise("compression", _digest(f"{(m.method, m.flags & ~_UTF8)}" for m in members_by_name))
    attributes = (f"{(m.made_by, *m.attributes)} {_known_fields(m.extra).hex()}" for m in members_by_name)
    yield Noise("attributes", _digest(attributes))
    yield Noise("order of members", _digest(m.name for m in sorted(archive_members, key=lambda m: m.start)))


def _known_fields(extra: bytes) -> bytes:
    return b"".join(data for kind, data in _extras(extra) if kind in _KNOWN_FIELDS and kind != _LONG_SIZES)


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def open_archive(source: Source, limits: Limits) -> ZipArchive:
    """Return an archive; raises ArtifactDamaged if its members overlap or are out of bounds."""
    place = _directory(source)
    count, start, end = place[:3]
    if end - start > limits.header or count > limits.parts:
        raise ArtifactDamaged(f"its directory has {count} members in {end - start} bytes, more than are read")
    result = list(_entries(read_exactly(source, start, end - start), count))
    for member in result:
        member.name = member.raw_name.decode("utf-8" if member.flags & _UTF8 else "cp437", "surrogateescape")
        data_start, member.end = _data_range(source, member, start)
        member.source = _contents(source, member, data_start, limits)
    by_offset = sorted(result, key=lambda member: member.start)
    for previous, following in pairwise(by_offset):
        if previous.end > following.start:
            raise ArtifactDamaged(f"its members {previous.name[:80]!r} and {following.name[:80]!r} overlap")
    if by_offset and by_offset[0].start:
        raise ArtifactDamaged(f"there are {by_offset[0].start} bytes before its first member")
    by_name = {member.name: member.source for member in result}
    for member in result:
        if refers(member.name) and isinstance(member.source, (ChecksummedSource, UnpackedSource)):
            directory, _, name = member.name.rpartition("/")
            prefix = f"{directory}/" if directory else ""
            member.source.beside = Siblings(name, lambda name, prefix=prefix: by_name.get(prefix + name))  # type: ignore[misc]
    return ZipArchive(result, tuple(_outside(source, by_offset, place)))


def _outside(source: Source, by_offset: list[ZipMember], directory: ZipDirectory) -> Iterator[Value]:
    """Yield what stands in the file and in no member: readers of the archive may show it to their users."""
    yield from outside_value("comment", directory.comment)
    yield from outside_value("behind the directory", directory.extension)
    limits = [*(member.start for member in by_offset[1:]), directory.start]
    for member, following in zip(by_offset, limits, strict=True):
        yield from outside_value(f"comment of {member.name}", member.comment)
        fields = dict.fromkeys((*_unknown_fields(member.extra), *_unknown_fields(member.local_extra)))
        yield from outside_value(f"fields of {member.name}", b"".join(fields))
        stop = member.end + _descriptor_size(source, member, following)
        if stop < following:
            yield from outside_value(f"behind {member.name}", piece(source, stop, following - stop))
    if not by_offset and directory.start:
        yield from outside_value("before the directory", piece(source, 0, directory.start))


def outside_value(where: str, content: bytes | Source) -> Iterator[Value]:
    """Yield the bytes of an archive that belong to none of its members: a short text, or a digest."""
    size = len(content) if isinstance(content, bytes) else content.size
    if isinstance(content, bytes) and 0 < size <= SHORT:
        yield Value(f"{OUTSIDE}, {where})", repr(content)[1:])
    elif size:
        digest = hashlib.sha256()
        for block in (content,) if isinstance(content, bytes) else blocks(content):
            digest.update(block)
        yield Value(f"{OUTSIDE}, {where})", f"{size} bytes, SHA-256 {digest.hexdigest()}")


def _unknown_fields(extra: bytes) -> Iterator[bytes]:
    """Yield the extra fields that hold more than times, owners, long sizes or padding."""
    at = 0
    for kind, data in _extras(extra):
        at += 4 + len(data)
        is_padding = kind in _PADDING and len(set(data)) <= 1
        if kind not in _KNOWN_FIELDS and not is_padding:
            yield struct.pack("<HH", kind, len(data)) + data
    yield extra[at:].strip(b"\0")


def _descriptor_size(source: Source, member: ZipMember, following: int) -> int:
    """Return the size of the record behind a member's data that repeats its check sum and sizes; 0 without one."""
    if not member.flags & _SIZES_AFTER_DATA:
        return 0
    data = source.read(member.end, min(_LONGEST_DESCRIPTOR, following - member.end))
    for signature in (b"PK\x07\x08", b""):
        for sizes in ("<LLL", "<LQQ"):
            with suppress(struct.error):
                record = signature + struct.pack(sizes, member.crc, member.packed, member.size)
                if data.startswith(record):
                    return len(record)
    return 0


def _directory(source: Source) -> ZipDirectory:
    """Return the directory of an archive."""
    tail_start = max(0, source.size - _COMMENT - _END.size)
    tail = read_exactly(source, tail_start, source.size - tail_start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise ArtifactDamaged("it has no directory at its end")
    _, disk, first_disk, on_disk, count, size, start, comment = _END.unpack_from(tail, at)
    end, extension = tail_start + at, b""
    if at + _END.size + comment != len(tail):
        raise ArtifactDamaged("there are bytes behind its end")
    locator_at = end - _END64_LOCATOR.size
    is_long = _OVERFLOW16 in (on_disk, count) or _OVERFLOW in (size, start)
    if locator_at >= 0 and (located := read_exactly(source, locator_at, _END64_LOCATOR.size)).startswith(b"PK\x06\x07"):
        _, _, end, disks = _END64_LOCATOR.unpack(located)
        signature, _, _, _, disk, first_disk, on_disk, count, size, start = _END64.unpack(
            read_exactly(source, end, _END64.size)
        )
        if signature != b"PK\x06\x06" or disks > 1 or end + _END64.size > locator_at:
            raise ArtifactDamaged("the directory's place is not where it says")
        extension = read_exactly(source, end + _END64.size, min(locator_at - end - _END64.size, _COMMENT))
    elif is_long and count == _OVERFLOW16:
        raise ArtifactDamaged("the directory's place is missing")
    if disk or first_disk or on_disk != count or start + size != end:
        raise ArtifactDamaged("its directory does not stand before its end")
    return ZipDirectory(count, start, end, tail[at + _END.size :], extension)


def _entries(data: bytes, count: int) -> Iterator[ZipMember]:
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            raise ArtifactDamaged("its directory is cut short")
        fields = _ENTRY.unpack_from(data, at)
        signature, made_by, needed, flags, method, clock, day, crc, packed, size, name, extra, comment = fields[:13]
        disk, inner, outer, offset = fields[13:]
        at += _ENTRY.size
        stop = at + name + extra + comment
        if signature != b"PK\x01\x02" or stop > len(data):
            raise ArtifactDamaged("its directory is damaged")
        if disk:
            raise ArtifactDamaged("a member stands in another file")
        if needed > _NEWEST_VERSION:
            raise ArtifactDamaged(f"a member needs version {needed / 10} of the format")
        more = data[at + name : at + name + extra]
        size, packed, offset = _long_sizes(more, size, packed, offset)
        raw_name, note = data[at : at + name], data[at + name + extra : stop]
        facts = (raw_name, made_by, flags, method, (day, clock), crc, packed, size, (inner, outer), offset)
        yield ZipMember(*facts, extra=more, comment=note)
        at = stop
    if at != len(data):
        raise ArtifactDamaged("its directory has other entries than it counts")


def _extras(extra: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        yield kind, extra[at + 4 : at + 4 + length]
        at += 4 + length


def _long_sizes(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """Return sizes and offset, which are in an extra field if they need more than 32 bits."""
    extended = next((data for kind, data in _extras(extra) if kind == _LONG_SIZES), b"")
    sizes = [size, packed, offset]
    values = iter(struct.unpack(f"<{len(extended) // 8}Q", extended[: len(extended) // 8 * 8]))
    for index, value in enumerate(sizes):
        if value == _OVERFLOW:
            sizes[index] = next(values, value)
    return sizes[0], sizes[1], sizes[2]


def _data_range(source: Source, member: ZipMember, limit: int) -> tuple[int, int]:
    """Return begin and end of a member's data by its local header, which must agree with the directory."""
    header = read_exactly(source, member.start, _LOCAL.size)
    signature, _, flags, method, _, _, crc, packed, size, name_length, extra = _LOCAL.unpack(header)
    start = member.start + _LOCAL.size + name_length + extra
    if signature != b"PK\x03\x04" or read_exactly(source, member.start + _LOCAL.size, name_length) != member.raw_name:
        raise ArtifactDamaged(f"its directory and its member {member.name[:80]!r} contradict each other")
    is_after = flags & _SIZES_AFTER_DATA  # then they are zero here, or all ones
    more = read_exactly(source, member.start + _LOCAL.size + name_length, extra)
    member.local_extra = more
    if not is_after:
        size, packed, _ = _long_sizes(more, size, packed, 0)
    recorded = {(crc, member.crc), (packed, member.packed), (size, member.size)}
    contradicts = any(here != there and not (is_after and here in (0, _OVERFLOW)) for here, there in recorded)
    if contradicts or (flags, method) != (member.flags, member.method) or start + member.packed > limit:
        raise ArtifactDamaged(f"its directory and its member {member.name[:80]!r} contradict each other")
    return start, start + member.packed


def _contents(source: Source, member: ZipMember, start: int, limits: Limits) -> Source:
    packed = piece(source, start, member.packed)
    if member.flags & _ENCRYPTED:
        raise ArtifactDamaged(f"its member {member.name[:80]!r} is encrypted")
    if member.method == 0:
        if member.packed != member.size:
            raise ArtifactDamaged(f"its member {member.name[:80]!r} has two sizes")
        return ChecksummedSource(packed, member.crc)
    if member.method not in _METHODS:
        raise ArtifactDamaged(
            f"its member {member.name[:80]!r} is compressed by method {member.method}, which is not known"
        )
    return UnpackedSource(packed, _METHODS[member.method], limits, member.size, member.crc)
