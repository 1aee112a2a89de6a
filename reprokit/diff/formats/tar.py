"""Reads tar archives: members are nested files; time stamps, owners, permissions and order are noise."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterator

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, NestedFile, Noise, Part, Source, Value
from reprokit.diff.formats.zip import OUTSIDE, SHORT, outside_value
from reprokit.diff.sources import BLOCK, SourceStream, piece

_KINDS = {
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symbolic link to",
    tarfile.LNKTYPE: "link to",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "FIFO",
}
_NAME, _LINK, _UNUSED = slice(100), slice(157, 257), slice(500, 512)  # fields of a member's head
_OF_NOISE = ("atime", "ctime")  # times in pax headers, besides those that tarfile puts into its own attributes
_NOISE: dict[str, Callable[[tarfile.TarInfo], object]] = {
    "time stamps": lambda member: (member.mtime, *map(member.pax_headers.get, _OF_NOISE)),
    "owners": lambda member: (member.uid, member.gid, member.uname, member.gname),
    "permissions": lambda member: member.mode,
}


class _BoundedStream(SourceStream):
    """A stream with a limit for each read: the headers of members are small."""

    def __init__(self, source: Source, most: int):
        super().__init__(source)
        self._limit, self._end = most, source.size

    def read(self, size: int = -1) -> bytes:
        size = max(0, min(size if size >= 0 else self._end, self._end - self.tell()))
        if size > self._limit:
            raise ArtifactDamaged(f"the head of a member is said to have {size} bytes")
        return super().read(size) or b""


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield each member, then their metadata as noise."""
    digests = dict.fromkeys(_NOISE, 0)
    order = hashlib.sha256()
    for member, _ in members(source):
        yield _part(member, source)
        yield from _outside(member, source)
        order.update(member.name.encode("utf-8", "surrogateescape") + b"\0")
        for name, fact in _NOISE.items():  # sums do not depend on the order
            text = f"{member.name}\0{fact(member)}".encode("utf-8", "surrogateescape")
            digests[name] += int.from_bytes(hashlib.sha256(text).digest(), "big")
    yield from (Noise(name, f"{total:x}") for name, total in digests.items())
    yield Noise("order of members", order.hexdigest())


def members(source: Source) -> Iterator[tuple[tarfile.TarInfo, int]]:
    """Yield each member, and the offset of the next one; then check the end of the archive."""
    stream = _BoundedStream(source, 1 << 20)
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (member := archive.next()) is not None:
                yield member, archive.offset
                archive.members = []  # type: ignore[attr-defined]  # otherwise it would store them all
            end = archive.offset
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
        raise ArtifactDamaged(f"it is damaged ({error})") from None
    _require_zeros(source, end)


def _outside(member: tarfile.TarInfo, source: Source) -> Iterator[Part]:
    """Yield what stands in the archive and not in a member's content: readers may show it to their users."""
    for key, text in sorted(member.pax_headers.items()):
        if key not in _OF_NOISE and key not in tarfile.PAX_FIELDS:
            yield Value(f"{OUTSIDE}, {key[:SHORT]} of {member.name})", repr(text))
    head = source.read(member.offset_data - tarfile.BLOCKSIZE, tarfile.BLOCKSIZE)
    unused = [head[field].partition(b"\0")[2] for field in (_NAME, _LINK)] + [head[_UNUSED]]
    yield from outside_value(f"head of {member.name}", b"".join(unused).strip(b"\0"))
    if member.isreg() and (rest := -member.size % tarfile.BLOCKSIZE):
        padding = source.read(member.offset_data + member.size, rest).rstrip(b"\0")
        yield from outside_value(f"behind {member.name}", padding)


def _require_zeros(source: Source, start: int) -> None:
    """Refuse an archive with data after its end, which other programs might read."""
    block = source.read(start, BLOCK)
    if not block:
        raise ArtifactDamaged("it has no end: it was cut short")
    if block[: tarfile.BLOCKSIZE].strip(b"\0"):  # here tarfile ends without an error
        raise ArtifactDamaged("the next member's header is damaged or cut short")
    while block:
        if block.strip(b"\0"):
            raise ArtifactDamaged("there are bytes behind its end")
        start += len(block)
        block = source.read(start, BLOCK)


def _part(member: tarfile.TarInfo, source: Source) -> Part:
    if member.issparse():
        raise ArtifactDamaged(f"its member {member.name[:80]!r} is sparse, which is not read")
    if member.isreg():
        return NestedFile(member.name, piece(source, member.offset_data, member.size))
    kind = _KINDS.get(member.type, f"member of type {member.type!r}")
    numbers = f" {member.devmajor},{member.devminor}" if kind == "device" else ""
    return Value(member.name, f"{kind} {member.linkname}{numbers}".strip())
