"""Checks data sets record by record: the sums of TFRecords, the headers and ends of tar archives."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from reprokit import native, object_stores
from reprokit.artifacts.elements import Source
from reprokit.artifacts.formats import tar
from reprokit.artifacts.formats.sstable import crc32c, unmasked
from reprokit.artifacts.sources import BLOCK, exactly, open_file
from reprokit.errors import ArtifactDamaged, ArtifactNotReadable
from reprokit.printable import printable

FORMAT = 1  # of the JSON document
STORE_BLOCK = 8 << 20  # bytes that one request to a store asks for
HEAD, FOOT = 12, 4  # of a TFRecord: length with its sum, and the sum of its data
TFRECORD_NAME = re.compile(r"\.tfrecords?([-._]|$)|\.tfevents\.")
NEVER_CHECKED = {  # by their first bytes
    b"PAR1": "parquet",
    b"\x1f\x8b": "compressed",
    b"\x28\xb5\x2f\xfd": "compressed",
    b"BZh": "compressed",
    b"\xfd7zXZ": "compressed",
}

Records = tuple[int, int, str]  # how many good ones, or a bad one: where it begins, and what is wrong with it


@dataclass(frozen=True)
class BadRecord:
    """Where a record is damaged, and how."""

    file: str
    record: int  # the first is 0
    offset: int
    problem: str


@dataclass
class CheckedData:
    """What was checked, and what was not."""

    path: str
    files: int = 0
    records: int = 0  # without those that are bad
    size: int = 0
    bad: list[BadRecord] = field(default_factory=list)
    not_checked: Counter[str] = field(default_factory=Counter)  # files by kind


class Ahead:
    """A source that is read by large blocks, of which small pieces are taken."""

    def __init__(self, source: Source, block: int):
        self.size = source.size
        self._source, self._block = source, block
        self._start, self._data = 0, memoryview(b"")

    def read(self, offset: int, length: int) -> bytes:
        """Return so many bytes from a place; fewer at the end."""
        return bytes(self.view(offset, length))

    def view(self, offset: int, length: int) -> Any:
        """As read, and nothing is copied."""
        length = max(0, min(length, self.size - offset))
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            size = max(length, min(self._block, self.size - offset))
            self._start, self._data = offset, memoryview(exactly(self._source, offset, size))
            at = 0
        return self._data[at : at + length]


def check(path: str) -> CheckedData:
    """Check a file, what is below a directory, or what is below a store's URL."""
    result = CheckedData(path)
    for name, source in _stored(path) if object_stores.is_remote(path) else _files(Path(path), result):
        records = _reader(name, source.read(0, 512), result)
        if records is None:
            continue
        result.files += 1
        result.size += source.size
        number = 0
        for count, offset, problem in records(source):
            if problem:
                result.bad.append(BadRecord(name, number, offset, problem))
            else:
                result.records += count
            number += count
    if not result.files:
        raise ArtifactNotReadable(f"{path} has neither TFRecords nor tar archives; name a place that has")
    return result


def _files(path: Path, result: CheckedData) -> Iterator[tuple[str, Ahead]]:
    for file in _walk(path) if path.is_dir() else [path]:
        if path.is_dir() and not file.is_file():
            result.not_checked["no regular file"] += 1
            continue
        with closing(open_file(file)) as source:
            yield str(file), Ahead(source, BLOCK)


def _walk(path: Path) -> Iterator[Path]:
    for directory, below, names in os.walk(path, onerror=_refuse):
        below.sort()
        yield from (Path(directory, name) for name in sorted(names))


def _refuse(error: OSError) -> None:
    raise ArtifactNotReadable(f"{error.filename}: {error.strerror}; name a place that can be read")


def _stored(url: str) -> Iterator[tuple[str, Ahead]]:
    """Yield all objects below the URL, or the one that it names."""
    root = url.rstrip("/")
    store = object_stores.open_store(root)
    metas = object_stores.listed(store, root)
    if not metas:
        root, _, name = root.rpartition("/")
        store = object_stores.open_store(root)
        metas = list(filter(None, [object_stores.found(store, root, name)]))
    for meta in sorted(metas, key=lambda one: str(one["path"])):
        yield f"{root}/{meta['path']}", Ahead(object_stores.StoredObject(store, root, meta), STORE_BLOCK)


def _reader(name: str, head: bytes, result: CheckedData) -> Callable[[Ahead], Iterator[Records]] | None:
    """Return what checks a file, told by its content before its name; None and its kind is counted."""
    if len(head) >= HEAD and _says(head[:8], head[8:HEAD]):
        return _tfrecords
    if head[257:262] == b"ustar":
        return _members
    kind = next((kind for magic, kind in NEVER_CHECKED.items() if head.startswith(magic)), None)
    if head[:1] == b"x" and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0:
        kind = "compressed"
    base = name.rpartition("/")[2]
    if kind is None and TFRECORD_NAME.search(base):
        return _tfrecords
    if kind is None and base.endswith(".tar"):
        return _members
    result.not_checked[kind or Path(base).suffix[:20] or "without suffix"] += 1
    return None


def _says(data: bytes, stored: bytes, crc: int = 0) -> bool:
    return crc32c(data, crc) == unmasked(int.from_bytes(stored, "little"))


def _tfrecords(source: Ahead) -> Iterator[Records]:
    ffi, library = native.artifacts()
    count = ffi.new("uint64_t *")
    at = 0
    while at < source.size:
        ahead = source.view(at, BLOCK)
        at += library.rka_tfrecords(ffi.from_buffer(ahead), len(ahead), count)
        if count[0]:
            yield count[0], 0, ""
            continue
        head = source.view(at, HEAD)
        if len(head) < HEAD:
            yield 1, at, f"the file ends at byte {source.size}, within the record's length"
            return
        if not _says(head[:8], head[8:]):
            yield 1, at, "its length has another CRC-32C than it says; nothing behind it was checked"
            return
        start = at + HEAD
        end = start + int.from_bytes(head[:8], "little")
        if end + FOOT > source.size:
            yield 1, at, f"it ends at byte {end + FOOT}, the file at byte {source.size}"
            return
        crc = 0
        for place in range(start, end, BLOCK):
            crc = crc32c(source.view(place, min(BLOCK, end - place)), crc)
        good = _says(b"", source.view(end, FOOT), crc)
        yield 1, at, "" if good else "its data has another CRC-32C than it says"
        at = end + FOOT


def _members(source: Ahead) -> Iterator[Records]:
    at = 0
    try:
        for member, following in tar.members(source):
            if following > source.size:
                yield 1, member.offset, f"it ends at byte {following}, the file at byte {source.size}"
                return
            yield 1, member.offset, ""
            at = following
    except ArtifactDamaged as error:
        yield 1, at, f"{error}; nothing behind it was checked"


def document(result: CheckedData) -> dict[str, Any]:
    """Return what --json prints."""
    return {
        "format": FORMAT,
        "path": result.path,
        "files": result.files,
        "records": result.records,
        "size": result.size,
        "bad": [vars(one) for one in result.bad],
        "not_checked": dict(sorted(result.not_checked.items())),
    }


def print_check(result: CheckedData) -> None:
    """Print each bad record, and how much was checked."""
    for one in result.bad:
        click.echo(f"bad: {printable(one.file)}: record {one.record} at byte {one.offset}: {printable(one.problem)}")
    records = f"{len(result.bad)} bad and {result.records} good records"
    click.echo(f"{records} in {result.files} {_files_word(result.files)} of {result.size} bytes")
    for kind, count in sorted(result.not_checked.items()):
        click.echo(f"not checked: {count} {_files_word(count)} ({printable(kind)})")


def _files_word(count: int) -> str:
    return "file" if count == 1 else "files"
