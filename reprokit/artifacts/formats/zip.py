"""Reads zip archives by the central directory; the local headers must agree with it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from reprokit.artifacts.decompression import BZIP2, DEFLATED, UnpackedSource
from reprokit.artifacts.elements import Limits, NestedFile, Noise, Part, Siblings, Source, Value
from reprokit.artifacts.formats import refers
from reprokit.artifacts.sources import BytesSource, ChecksummedSource, piece, read_exactly
from reprokit.errors import ArtifactDamaged

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_OVERFLOW, _OVERFLOW16 = 0xFFFFFFFF, 0xFFFF
_COMMENT = 0xFFFF  # bytes of the longest comment at the end
_ENCRYPTED, _SIZES_AFTER_DATA, _UTF8 = 0x1, 0x8, 0x800
_NEWEST_VERSION = 63  # newest supported version of the format, times ten
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
    name: str = ""
    source: Source = field(default_factory=lambda: BytesSource(b""))
    end: int = 0

    @property
    def is_directory(self) -> bool:
        return self.name.endswith("/") and self.size == 0


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield each member as a nested file."""
    archive_members = members(source, limits)
    yield from noise(archive_members)
    for member in archive_members:
        yield part(member)


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
    attributes = (f"{(m.made_by, *m.attributes)} {m.extra.hex()}" for m in members_by_name)
    yield Noise("attributes", _digest(attributes))
    yield Noise("order of members", _digest(m.name for m in sorted(archive_members, key=lambda m: m.start)))


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def members(source: Source, limits: Limits) -> list[ZipMember]:
    """Return all members in the order of the directory; raises ArtifactDamaged if they overlap or are out of bounds."""
    count, start, end = _directory(source)
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
    return result


def _directory(source: Source) -> tuple[int, int, int]:
    """Return how many entries the directory has, where it begins, and where it ends."""
    tail_start = max(0, source.size - _COMMENT - _END.size)
    tail = read_exactly(source, tail_start, source.size - tail_start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise ArtifactDamaged("it has no directory at its end")
    _, disk, first_disk, on_disk, count, size, start, comment = _END.unpack_from(tail, at)
    end = tail_start + at
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
    elif is_long and count == _OVERFLOW16:
        raise ArtifactDamaged("the directory's place is missing")
    if disk or first_disk or on_disk != count or start + size != end:
        raise ArtifactDamaged("its directory does not stand before its end")
    return count, start, end


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
        rest = b"".join(data for kind, data in _extras(more) if kind != 1) + data[at + name + extra : stop]
        raw_name = data[at : at + name]
        yield ZipMember(raw_name, made_by, flags, method, (day, clock), crc, packed, size, (inner, outer), offset, rest)
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
    extended = next((data for kind, data in _extras(extra) if kind == 1), b"")
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
    if not is_after:
        more = read_exactly(source, member.start + _LOCAL.size + name_length, extra)
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
