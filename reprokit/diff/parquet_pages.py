"""Reads the pages of Parquet files and checks their checksums, without Arrow.

Only the parts of Thrift's compact protocol that Parquet uses are read. The checksum of a page (CRC-32 of its stored
bytes) is optional, and many writers omit it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from reprokit.core.errors import ArtifactDamaged

MAGIC = b"PAR1"
MAX_FOOTER, MAX_HEAD = 64 << 20, 1 << 20  # bytes of the footer, and of a page header
BLOCK = 1 << 16
DATA, DICTIONARY, DATA_2 = 0, 2, 3  # types of pages
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
MAX_DEPTH = 16


class PageView(Protocol):
    """A file with random access."""

    size: int

    def read(self, offset: int, length: int) -> bytes: ...


class ParquetPage(NamedTuple):
    """A checked page: its offset, its first row as far as known, and the problem."""

    offset: int
    row: int
    problem: str
    unsummed: bool


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file, stored column by column."""

    first: int
    rows: int
    columns: list[dict[int, Any]]  # ColumnMetaData of parquet.thrift, by field

    def pages(self, source: PageView) -> Iterator[ParquetPage]:
        """Yield all pages; a damaged header ends the pages of its column."""
        for column in self.columns:
            name = b".".join(column[3]).decode("utf-8", "replace")[:200]
            for page in self._column_pages(source, column):
                problem = f"column {name}: {page.problem}" if page.problem else ""
                yield page._replace(problem=problem)

    def _column_pages(self, source: PageView, column: dict[int, Any]) -> Iterator[ParquetPage]:
        dictionary, at = column.get(11), _number(column, 9)
        at = dictionary if isinstance(dictionary, int) and 0 < dictionary < at else at
        end, row = at + _number(column, 7), self.first
        is_flat = len(column[3]) == 1 and column.get(5) == self.rows  # otherwise values do not correspond to rows
        while at < end:
            try:
                header, length = _page_header(source, at, end)
                size, stored = _number(header, 3), header.get(4)
                if at + length + size > min(end, source.size):
                    raise ArtifactDamaged(f"its page ends at byte {at + length + size}, its column at byte {end}")
            except ArtifactDamaged as error:
                yield ParquetPage(at, row, f"{error}; nothing behind it was checked", False)
                return
            start, crc = at + length, 0
            for position in range(start, start + size, BLOCK):
                crc = zlib.crc32(source.read(position, min(BLOCK, start + size - position)), crc)
            is_good = stored is None or crc == stored & 0xFFFFFFFF
            yield ParquetPage(at, row, "" if is_good else "its page has another CRC-32 than it says", stored is None)
            values = header.get({DATA: 5, DATA_2: 8}.get(header.get(1, -1), -1), {})
            row += values.get(1, 0) if is_flat and isinstance(values, dict) else 0
            at = start + size


def row_groups(source: PageView) -> Iterator[RowGroup]:
    """Yield the row groups in the footer; raises ArtifactDamaged if it is damaged."""
    if source.read(0, 4) != MAGIC:
        raise ArtifactDamaged("it does not begin as Parquet files do")
    tail = source.read(max(0, source.size - 8), 8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or not 0 < size <= min(source.size - 12, MAX_FOOTER):
        raise ArtifactDamaged("it has no footer: it was cut short, or is damaged there")
    footer, _ = _header(source.read(source.size - 8 - size, size))
    first = 0
    for group in _structs(footer, 4):
        rows, chunks = _number(group, 3), _structs(group, 1)
        metadata = [chunk.get(3) for chunk in chunks if 1 not in chunk]  # field 1 names another file with the chunk
        columns = [column for column in metadata if isinstance(column, dict) and _is_named(column.get(3))]
        if len(columns) < len(metadata):
            raise ArtifactDamaged("its footer has columns without what they are")
        yield RowGroup(first, rows if columns else 0, columns)
        first += rows


def _structs(fields: dict[int, Any], field: int) -> list[dict[int, Any]]:
    structs = fields.get(field)
    if not isinstance(structs, list) or not all(isinstance(struct, dict) for struct in structs):
        raise ArtifactDamaged(f"its footer has no list in field {field}")
    return structs


def _is_named(path: object) -> bool:
    return isinstance(path, list) and all(isinstance(word, bytes) for word in path)


def _page_header(source: PageView, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Read a page header: from a small block, or from a larger one if it has long statistics."""
    try:
        return _header(source.read(at, min(BLOCK, end - at)))
    except ArtifactDamaged:
        return _header(source.read(at, min(MAX_HEAD, end - at)))


def _number(fields: dict[int, Any], field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or value < 0:
        raise ArtifactDamaged(f"its field {field} is no length")
    return value


def _header(data: bytes) -> tuple[dict[int, Any], int]:
    """Return the fields of a Thrift struct, and its length in bytes."""
    try:
        return _struct(data, 0, 0)
    except (IndexError, RecursionError, TypeError, ValueError):
        raise ArtifactDamaged("its head is damaged") from None


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > MAX_DEPTH:
        raise ValueError
    fields: dict[int, Any] = {}
    field = 0
    while byte := data[at]:
        at += 1
        if byte >> 4:
            field += byte >> 4
        else:
            field, at = _zigzag(data, at)
        kind = byte & 15
        if kind in (_TRUE, _FALSE):
            fields[field] = kind == _TRUE
        else:
            fields[field], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_TRUE, _FALSE, _BYTE):  # within lists
        return data[at], at + 1
    if kind == _DOUBLE:
        return None, at + 8
    if kind == _BINARY:
        size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError
        return data[at : at + size], at + size
    if kind in (_LIST, _SET):
        count, inner = data[at] >> 4, data[at] & 15
        count, at = _varint(data, at + 1) if count == 15 else (count, at + 1)
        if count > len(data) - at:
            raise ValueError
        values = []
        for _ in range(count):
            value, at = _value(data, at, inner, depth + 1)
            values.append(value)
        return values, at
    if kind in (4, 5, 6):  # numbers
        return _zigzag(data, at)
    raise ValueError


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return number >> 1 ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError
