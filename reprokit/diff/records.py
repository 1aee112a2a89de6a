"""Reads data sets and checks each record: checksums of TFRecords, headers of tar archives, pages of Parquet files."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reprokit.core import native
from reprokit.core.errors import ArtifactDamaged, ArtifactNotReadable, ExtraMissing, ReprokitError
from reprokit.diff.decompression import BZIP2, GZIP, XZ, ZLIB, unpacked_blocks
from reprokit.diff.elements import Limits, Source, Value
from reprokit.diff.formats import tar
from reprokit.diff.formats.library_process import ParsingLibrary
from reprokit.diff.formats.sstable import crc32c, unmasked
from reprokit.diff.sources import BLOCK, blocks, open_file, read_exactly
from reprokit.run_files import object_stores

STORE_BLOCK = 8 << 20  # bytes per request to an object store
HEAD, FOOTER = 12, 4  # bytes around the data of a TFRecord: length and its checksum, and the checksum of the data
TFRECORD_NAME = re.compile(r"\.tfrecords?([-._]|$)|\.tfevents\.")
TAR_NAME = re.compile(r"\.(tar(\.\w+)?|tgz)$")
PARQUET, ENCRYPTED = b"PAR1", b"PARE"
ARROW = ParsingLibrary("Arrow", "pyarrow", "reprokit.diff.arrow_process", "check")
UNSUMMED = "parquet: pages that have no checksum, if any"  # Arrow verifies one silently, or passes over its absence
PACKED = {b"\x1f\x8b": GZIP, b"BZh": BZIP2, b"\xfd7zXZ": XZ}
ZSTANDARD = b"\x28\xb5\x2f\xfd"


class CheckedRecords(NamedTuple):
    """A number of intact records, or one damaged record: its number, its offset, and the problem."""

    amount: int
    offset: int = 0
    problem: str = ""
    record: int | None = None  # None: it follows the previous records
    unchecked: str = ""  # what of the file was not checked


@dataclass(frozen=True)
class RecordFile:
    """A file or an object of a data set."""

    name: str
    open: Callable[[], Source]


class NotARecordFile(Exception):
    """Raised for a file that holds no known records; its message is the kind of the file.

    library: the package that could read it, where that is not installed.
    """

    def __init__(self, kind: str, library: str = "") -> None:
        super().__init__(f"{kind}, needs {library}" if library else kind)
        self.library = library


class ReadAheadSource:
    """A source read in large blocks, from which small pieces are taken; gaps between blocks are not read."""

    damage = ""

    def __init__(self, source: Source, block: int):
        self.size = source.size
        self._source, self._block = source, block
        self._start, self._data = 0, memoryview(b"")

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer only at the end."""
        return bytes(self.view(offset, length))

    def available(self, offset: int) -> Any:
        """Return the buffered bytes from `offset` on; empty only at the end."""
        return self.view(offset, BLOCK)

    def view(self, offset: int, length: int) -> Any:
        """Return the same bytes as read(), as a view without a copy."""
        length = max(0, min(length, self.size - offset))
        if not length:
            return b""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            size = max(length, min(self._block, self.size - offset))
            self._start, self._data = offset, memoryview(read_exactly(self._source, offset, size))
            at = 0
        return self._data[at : at + length]


class StreamedSource:
    """A stream of blocks as a source that is read from front to back."""

    def __init__(self, stream: Iterator[Any], size: int = sys.maxsize):
        self.size = size  # for unpacked bytes known only at the end
        self.damage = ""  # why the stream ended early
        self._stream = stream
        self._start, self._blocks = 0, deque[memoryview]()  # offset of the first buffered block, and all of them
        self._end = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer only at the end."""
        return bytes(self.view(offset, length))

    def available(self, offset: int) -> Any:
        """Return the buffered bytes from `offset` on; empty only at the end."""
        self.view(offset, 1)
        return self._blocks[0][offset - self._start :] if self._blocks else b""

    def view(self, offset: int, length: int) -> Any:
        """Return the same bytes as read(), without a copy within a block; offsets must not decrease."""
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


RecordSource = ReadAheadSource | StreamedSource


def files(path: str) -> Iterator[RecordFile | None]:
    """Yield a file, or all files below a directory or a store's URL; None stands for what is no regular file."""
    if object_stores.is_remote(path):
        yield from _stored_objects(path)
        return
    place = Path(path)
    for file in _walk(place) if place.is_dir() else [place]:
        is_file = file.is_file() or not place.is_dir()
        yield RecordFile(str(file), lambda file=file: open_file(file)) if is_file else None  # type: ignore[misc]


def _walk(path: Path) -> Iterator[Path]:
    for directory, directories, names in os.walk(path, onerror=_refuse):
        directories.sort()
        yield from (Path(directory, name) for name in sorted(names))


def _refuse(error: OSError) -> None:
    raise ArtifactNotReadable(f"{error.filename}: {error.strerror}; name a place that can be read")


def _stored_objects(url: str) -> Iterator[RecordFile]:
    """Yield all objects below the URL, or the object that it names."""
    root = url.rstrip("/")
    store = object_stores.open_store(root)
    metas = object_stores.listed(store, root)
    if not metas:
        root, _, name = root.rpartition("/")
        store = object_stores.open_store(root)
        metas = list(filter(None, [object_stores.found(store, root, name)]))
    for meta in sorted(metas, key=lambda metadata: str(metadata["path"])):
        stored = object_stores.StoredObject(store, root, meta)
        yield RecordFile(f"{root}/{meta['path']}", lambda stored=stored: stored)  # type: ignore[misc]


def read(name: str, source: Source, *, whole: bool = False) -> Iterator[CheckedRecords]:
    """Yield the checked records of a file. `whole` reads all bytes, not only those that the check needs.

    Raises NotARecordFile at the first record if the file holds no known records.
    """
    is_stored = isinstance(source, object_stores.StoredObject)
    view: RecordSource = ReadAheadSource(source, STORE_BLOCK if is_stored else BLOCK)
    if whole:
        stream = source.stream() if isinstance(source, object_stores.StoredObject) else blocks(source)
        view = StreamedSource(stream, source.size)
    head = view.read(0, 512)
    if head.startswith(PARQUET) or (name.endswith(".parquet") and not head.startswith(ENCRYPTED)):
        yield from _row_groups(source, head)
        return
    method = _compression_method(head)
    if method:
        view = StreamedSource(unpacked_blocks(view, method))
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


def _compression_method(head: bytes) -> str:
    """Return the compression method by the first bytes; empty if the file is not compressed."""
    method = next((method for magic, method in PACKED.items() if head.startswith(magic)), "")
    # A zlib header, unless the bytes are the header of a TFRecord
    if not method and head[:1] == b"x" and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0:
        method = "" if _is_record_header(head) else ZLIB
    return method


def _is_record_header(head: bytes) -> bool:
    return len(head) >= HEAD and crc32c(head[:8]) == unmasked(int.from_bytes(head[8:HEAD], "little"))


def _reader(name: str, head: bytes) -> Callable[[RecordSource], Iterator[CheckedRecords]] | None:
    """Return the function that checks a file, by its content first, then by its name."""
    if _is_record_header(head):
        return _tfrecords
    if head[257:262] == b"ustar":
        return _members
    return _tfrecords if TFRECORD_NAME.search(name) else _members if TAR_NAME.search(name) else None


def _tfrecords(source: RecordSource) -> Iterator[CheckedRecords]:
    ffi, library = native.artifacts()
    state = ffi.new("struct rka_tfrecords *")
    offset = 0
    while piece := source.available(offset):
        offset += library.rka_tfrecords(state, ffi.from_buffer(piece), len(piece))
        if state.good:
            yield CheckedRecords(state.good)
        if state.wrong and state.begun == HEAD:
            yield CheckedRecords(
                1, offset - HEAD, "its length has another CRC-32C than it says; nothing behind it was checked"
            )
            return
        if state.wrong:
            yield CheckedRecords(1, offset - state.begun, "its data has another CRC-32C than it says")
    if state.begun and not state.wrong:
        start = offset - state.begun
        problem = f"it ends at byte {start + HEAD + state.length + FOOTER}, the file at byte {source.size}"
        if state.begun < HEAD:
            problem = f"the file ends at byte {source.size}, within the record's length"
        yield CheckedRecords(1, start, source.damage or problem)


def _members(source: RecordSource) -> Iterator[CheckedRecords]:
    next_offset = 0
    try:
        for member, end in tar.members(source):
            if not source.view(end - 1, 1):
                problem = source.damage or f"it ends at byte {end}, the file at byte {source.size}"
                yield CheckedRecords(1, member.offset, problem)
                return
            yield CheckedRecords(1, member.offset)
            next_offset = end
    except ArtifactDamaged as error:
        yield CheckedRecords(1, next_offset, source.damage or f"{error}; nothing behind it was checked")


def _row_groups(source: Source, head: bytes) -> Iterator[CheckedRecords]:
    """Check the row groups of a Parquet file by Arrow; a damaged column is reported by the group's first row."""
    if missing := ARROW.missing:
        raise NotARecordFile("parquet", missing)
    if not head.startswith(PARQUET):
        yield CheckedRecords(0, 0, "it does not begin as Parquet files do", 0)
        return
    row = 0
    try:
        for part in ARROW.read(source, Limits()):
            if not isinstance(part, Value):
                raise ArtifactDamaged("Arrow has sent something else")
            result = msgspec.json.decode(part.name, type=tuple[int, int, int | None] | None)
            if result is None:
                yield CheckedRecords(0, unchecked=f"parquet: {part.text}")
                continue
            rows, offset, first = result
            yield CheckedRecords(rows, offset, part.text, first)
            row += rows
        yield CheckedRecords(0, unchecked=UNSUMMED)
    except (ArtifactDamaged, msgspec.MsgspecError) as error:
        yield CheckedRecords(0, max(0, source.size - 8), f"{error}; nothing behind it was checked", row)


def none_known(path: str, missing: str) -> ReprokitError:
    """Return the error about a place of which no file can be read; `missing` is a package that could read one."""
    if missing:
        return ExtraMissing("reading Parquet files", missing)
    return ArtifactNotReadable(f"{path} has no records that are known; name TFRecords, tar archives or Parquet files")


def numbered(records: Iterable[CheckedRecords]) -> Iterator[tuple[int, CheckedRecords]]:
    """Yield each result with the number of its first record."""
    number = 0
    for batch in records:
        yield number if batch.record is None else batch.record, batch
        number += batch.amount
