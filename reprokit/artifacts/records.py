"""Reads data sets record by record, each compared with its sum: TFRecords, tar archives, pages of Parquet files."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from reprokit import native, object_stores
from reprokit.artifacts import parquet_pages
from reprokit.artifacts.decompression import BZIP2, GZIP, XZ, ZLIB, unpacked_blocks
from reprokit.artifacts.elements import Source
from reprokit.artifacts.formats import tar
from reprokit.artifacts.formats.sstable import crc32c, unmasked
from reprokit.artifacts.sources import BLOCK, blocks, exactly, open_file
from reprokit.errors import ArtifactDamaged, ArtifactNotReadable

STORE_BLOCK = 8 << 20  # bytes that one request to a store asks for
HEAD, FOOT = 12, 4  # of a TFRecord: length with its sum, and the sum of its data
TFRECORD_NAME = re.compile(r"\.tfrecords?([-._]|$)|\.tfevents\.")
TAR_NAME = re.compile(r"\.(tar(\.\w+)?|tgz)$")
PARQUET, ENCRYPTED = parquet_pages.MAGIC, b"PARE"
PACKED = {b"\x1f\x8b": GZIP, b"BZh": BZIP2, b"\xfd7zXZ": XZ}
ZSTANDARD = b"\x28\xb5\x2f\xfd"


class CheckedRecords(NamedTuple):
    """Records that are good, or one that is not: its number, where it begins, and what is wrong with it."""

    amount: int
    offset: int = 0
    problem: str = ""
    record: int | None = None  # None: it follows those before it
    unsummed: bool = False  # their container has no sums of them


@dataclass(frozen=True)
class RecordFile:
    """A file or an object of a data set."""

    name: str
    open: Callable[[], Source]


class NotARecordFile(Exception):
    """A file that is not read, and of which kind it is."""


class Ahead:
    """A source that is read by large blocks, of which small pieces are taken; what lies between them is not read."""

    damage = ""

    def __init__(self, source: Source, block: int):
        self.size = source.size
        self._source, self._block = source, block
        self._start, self._data = 0, memoryview(b"")

    def read(self, offset: int, length: int) -> bytes:
        """Return so many bytes from a place; fewer at the end."""
        return bytes(self.view(offset, length))

    def some(self, offset: int) -> Any:
        """Return bytes from a place on, as many as are at hand; none at the end only."""
        return self.view(offset, BLOCK)

    def view(self, offset: int, length: int) -> Any:
        """As read, and nothing is copied."""
        length = max(0, min(length, self.size - offset))
        if not length:
            return b""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            size = max(length, min(self._block, self.size - offset))
            self._start, self._data = offset, memoryview(exactly(self._source, offset, size))
            at = 0
        return self._data[at : at + length]


class Streamed:
    """Blocks that come one after the other, as a source of which pieces are taken from its front to its back."""

    def __init__(self, stream: Iterator[Any], size: int = sys.maxsize):
        self.size = size  # that of unpacked bytes is known at their end
        self.damage = ""  # why they end too early
        self._stream = stream
        self._start, self._blocks = 0, deque[memoryview]()  # where the first of those that are kept begins
        self._end = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return so many bytes from a place; fewer at the end."""
        return bytes(self.view(offset, length))

    def some(self, offset: int) -> Any:
        """Return bytes from a place on, as many as are at hand; none at the end only."""
        self.view(offset, 1)
        return self._blocks[0][offset - self._start :] if self._blocks else b""

    def view(self, offset: int, length: int) -> Any:
        """As read, and nothing is copied that lies in one block; no later piece begins before this one."""
        while True:
            while self._blocks and self._start + len(self._blocks[0]) <= offset:
                self._start += len(self._blocks.popleft())
            if self._end >= offset + length or not self._next():
                break
        at = offset - self._start
        if self._blocks and at + length <= len(self._blocks[0]):
            return self._blocks[0][at : at + length]
        pieces = []
        for block in self._blocks:
            pieces.append(block[at : at + length])
            length -= len(pieces[-1])
            at = 0
            if not length:
                break
        return b"".join(pieces)

    def _next(self) -> bool:
        try:
            block = next(self._stream, None)
        except ArtifactDamaged as error:
            block, self.damage = None, str(error)
        if block is None:
            self.size = self._end
            return False
        self._blocks.append(memoryview(block).cast("B"))
        self._end += len(self._blocks[-1])
        return True


View = Ahead | Streamed


def files(path: str) -> Iterator[RecordFile | None]:
    """Yield a file, what is below a directory, or what is below a store's URL; None stands for no regular file."""
    if object_stores.is_remote(path):
        yield from _stored(path)
        return
    place = Path(path)
    for file in _walk(place) if place.is_dir() else [place]:
        is_file = file.is_file() or not place.is_dir()
        yield RecordFile(str(file), lambda file=file: open_file(file)) if is_file else None  # type: ignore[misc]


def _walk(path: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(path, onerror=_refuse):
        below.sort()
        yield from (Path(directory, name) for name in sorted(names))


def _refuse(error: OSError) -> None:
    raise ArtifactNotReadable(f"{error.filename}: {error.strerror}; name a place that can be read")


def _stored(url: str) -> Iterator[RecordFile]:
    """Yield all objects below the URL, or the one that it names."""
    root = url.rstrip("/")
    store = object_stores.open_store(root)
    metas = object_stores.listed(store, root)
    if not metas:
        root, _, name = root.rpartition("/")
        store = object_stores.open_store(root)
        metas = list(filter(None, [object_stores.found(store, root, name)]))
    for meta in sorted(metas, key=lambda one: str(one["path"])):
        stored = object_stores.StoredObject(store, root, meta)
        yield RecordFile(f"{root}/{meta['path']}", lambda stored=stored: stored)  # type: ignore[misc]


def read(name: str, source: Source, *, whole: bool = False, ahead: bool = False) -> Iterator[CheckedRecords]:
    """Yield the records of a file; all of its bytes are read, of objects even ahead, or those that the check needs.

    Raises NotARecordFile at the first one for a file of another kind.
    """
    is_stored = isinstance(source, object_stores.StoredObject)
    view: View = Ahead(source, STORE_BLOCK if is_stored else BLOCK)
    if whole:
        stream = source.stream(ahead=ahead) if isinstance(source, object_stores.StoredObject) else blocks(source)
        view = Streamed(stream, source.size)
    head = view.read(0, 512)
    if head.startswith(PARQUET) or (name.endswith(".parquet") and not head.startswith(ENCRYPTED)):
        yield from _pages(Ahead(source, STORE_BLOCK if is_stored else BLOCK))
        return
    method = _packed(head)
    if method:
        view = Streamed(unpacked_blocks(view, method))
        head = view.read(0, 512)
    reader = _reader(name.rpartition("/")[2], head)
    if reader is None:
        kind = "compressed" if method or head.startswith(ZSTANDARD) else Path(name).suffix[:20] or "without suffix"
        raise NotARecordFile(kind)
    damage = ""
    for records in reader(view):
        damage = damage or records.problem
        yield records
    if view.damage and not damage:
        yield CheckedRecords(1, view.size, view.damage)


def _packed(head: bytes) -> str:
    """Return how a file is compressed, told by its first bytes; empty where it is not."""
    method = next((method for magic, method in PACKED.items() if head.startswith(magic)), "")
    # The head of zlib's format, unless what follows is the length of a TFRecord
    if not method and head[:1] == b"x" and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0:
        method = "" if _is_length(head) else ZLIB
    return method


def _is_length(head: bytes) -> bool:
    return len(head) >= HEAD and _says(head[:8], head[8:HEAD])


def _reader(name: str, head: bytes) -> Callable[[View], Iterator[CheckedRecords]] | None:
    """Return what checks a file, told by its content before its name."""
    if _is_length(head):
        return _tfrecords
    if head[257:262] == b"ustar":
        return _members
    return _tfrecords if TFRECORD_NAME.search(name) else _members if TAR_NAME.search(name) else None


def _says(data: bytes, stored: bytes, crc: int = 0) -> bool:
    return crc32c(data, crc) == unmasked(int.from_bytes(stored, "little"))


def _tfrecords(source: View) -> Iterator[CheckedRecords]:
    ffi, library = native.artifacts()
    count = ffi.new("uint64_t *")
    at = 0
    while ahead := source.some(at):
        at += library.rka_tfrecords(ffi.from_buffer(ahead), len(ahead), count)
        if count[0]:
            yield CheckedRecords(count[0])
            continue
        head = source.view(at, HEAD)
        if len(head) < HEAD:
            problem = source.damage or f"the file ends at byte {source.size}, within the record's length"
            yield CheckedRecords(1, at, problem)
            return
        if not _says(head[:8], head[8:]):
            yield CheckedRecords(1, at, "its length has another CRC-32C than it says; nothing behind it was checked")
            return
        start = at + HEAD
        end = start + int.from_bytes(head[:8], "little")
        crc = 0
        for place in range(start, min(end, source.size), BLOCK):
            piece = source.view(place, min(BLOCK, end - place))
            if not piece:
                break
            crc = crc32c(piece, crc)
        foot = source.view(end, FOOT)
        if len(foot) < FOOT:
            problem = source.damage or f"it ends at byte {end + FOOT}, the file at byte {source.size}"
            yield CheckedRecords(1, at, problem)
            return
        good = _says(b"", foot, crc)
        yield CheckedRecords(1, at, "" if good else "its data has another CRC-32C than it says")
        at = end + FOOT


def _members(source: View) -> Iterator[CheckedRecords]:
    at = 0
    try:
        for member, following in tar.members(source):
            if not source.view(following - 1, 1):
                problem = source.damage or f"it ends at byte {following}, the file at byte {source.size}"
                yield CheckedRecords(1, member.offset, problem)
                return
            yield CheckedRecords(1, member.offset)
            at = following
    except ArtifactDamaged as error:
        yield CheckedRecords(1, at, source.damage or f"{error}; nothing behind it was checked")


def _pages(source: Ahead) -> Iterator[CheckedRecords]:
    """Check the pages of each row group; of a bad one the first row is named."""
    row = 0
    try:
        for group in parquet_pages.row_groups(source):
            row, bad, unsummed = group.first, False, False
            for page in group.pages(source):
                unsummed |= page.unsummed
                if page.problem:
                    bad = True
                    yield CheckedRecords(0, page.offset, page.problem, page.row)
            yield CheckedRecords(0 if bad else group.rows, unsummed=unsummed)
    except ArtifactDamaged as error:
        yield CheckedRecords(0, max(0, source.size - 8), f"{error}; nothing behind it was checked", row)


def numbered(records: Iterable[CheckedRecords]) -> Iterator[tuple[int, CheckedRecords]]:
    """Yield records with the number of the first of them."""
    number = 0
    for some in records:
        yield number if some.record is None else some.record, some
        number += some.amount
