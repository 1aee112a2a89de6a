"""Reads Parquet, Arrow and Feather files in a separate process (part_process).

Columns of numbers are tensors, with a mask of missing values; in other columns each value is sent. Compression and row
groups are noise. To check a Parquet file, all its pages are read, and what can be read of it is sent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

import numpy
import pyarrow
from pyarrow import ipc, parquet

from reprokit.diff.part_process import PartWriter, RefusedFile, serve

MAGIC_PARQUET, MAGIC_FILE = b"PAR1", b"ARROW1"
START = 8  # of an Arrow file's stream, behind the magic bytes
MARKER = b"\xff\xff\xff\xff"  # before each message and its length
MOST_SCHEMA = 16 << 20  # bytes that are read of a schema without its length
MOST_VALUES = 250_000  # in a column without numbers, which are sent one by one
ROWS = 1 << 16  # rows of a Parquet file per read
UNREADABLE = ("LZO", "UNKNOWN")  # compressions, for which Arrow has the same error as for damage
BATCH = 64 << 20  # bytes of a read of a column that is checked


def read(source: IO[bytes], parts: PartWriter) -> None:
    """Send the schema, then all columns."""
    start, size = os.pread(source.fileno(), 6, 0), os.fstat(source.fileno()).st_size
    if start.startswith(MAGIC_PARQUET):
        file = parquet.ParquetFile(source)
        _noise(parts, "created by", file.metadata.created_by)
        _noise(parts, "row groups", file.metadata.num_row_groups)
        schema, rows = file.schema_arrow, file.metadata.num_rows
        chunks = partial(_of_parquet, file)
    elif start == MAGIC_FILE:
        file_reader = ipc.open_file(source)
        if not _leading_schema(source).equals(file_reader.schema, check_metadata=True):
            raise RefusedFile("the schemas at its beginning and at its end contradict each other")
        schema, rows = file_reader.schema, file_reader.read_all().num_rows
        chunks = partial(_of_arrow, file_reader)
    else:
        raise RefusedFile("it is neither a Parquet nor an Arrow file")
    if len(set(schema.names)) != len(schema):
        raise RefusedFile("two of its columns have the same name")
    _schema(parts, schema, rows)
    for field in schema:
        _column(parts, field, rows, partial(chunks, field.name), size)


def _leading_schema(source: IO[bytes]) -> Any:
    """Return the schema at the beginning of an Arrow file.

    polars writes it without the marker and the length that the format puts before a message.
    """
    data = os.pread(source.fileno(), MOST_SCHEMA, START)
    if data.startswith(MARKER):
        source.seek(START)
        return ipc.open_stream(source).schema
    return ipc.read_schema(pyarrow.py_buffer(MARKER + len(data).to_bytes(4, "little") + data))


def _of_parquet(file: Any, name: str) -> Iterator[Any]:
    return (batch.column(0) for batch in file.iter_batches(ROWS, columns=[name]))


def _of_arrow(file: Any, name: str) -> Iterator[Any]:
    return (file.get_batch(number).column(name) for number in range(file.num_record_batches))


def _noise(parts: PartWriter, name: str, value: object) -> None:
    parts.send("noise", name, text=str(value))


def _schema(parts: PartWriter, schema: Any, rows: int) -> None:
    parts.send("value", "rows", text=str(rows))
    for key, value in sorted((schema.metadata or {}).items()):
        parts.send("value", f"metadata/{key.decode('utf-8', 'replace')}", text=repr(value))
    for field in schema:
        parts.send("value", f"{field.name}/type", text=f"{field.type}{'' if field.nullable else ', not null'}")
        for key, value in sorted((field.metadata or {}).items()):
            parts.send("value", f"{field.name}/metadata/{key.decode('utf-8', 'replace')}", text=repr(value))


def _column(parts: PartWriter, field: Any, rows: int, chunks: Callable[[], Iterator[Any]], stored: int) -> None:
    """Send a column: the mask of missing values and the numbers, or all values."""
    dtype = _dtype(field.type)
    if dtype is None:
        return _values(parts, field, rows, chunks)
    parts.spend(field.name, rows * (dtype.itemsize + 1), stored)
    _tensor(parts, f"{field.name}/missing", numpy.dtype(bool), rows, (chunk.is_null() for chunk in chunks()))
    _tensor(parts, field.name, dtype, rows, (chunk.fill_null(_zero(field.type)) for chunk in chunks()))
    return None


def _dtype(kind: Any) -> numpy.dtype[Any] | None:
    """Return the dtype of a column of numbers; None for other columns."""
    is_plain = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)
    return numpy.dtype(kind.to_pandas_dtype()) if is_plain else None


def _zero(kind: Any) -> Any:
    return pyarrow.scalar(numpy.zeros(1, kind.to_pandas_dtype())[0], kind)


def _tensor(parts: PartWriter, name: str, dtype: numpy.dtype[Any], rows: int, chunks: Iterator[Any]) -> None:
    parts.send("tensor", name, rows * dtype.itemsize, dtype=dtype.name, shape=[rows], big=False)
    for chunk in chunks:
        parts.out.write(numpy.ascontiguousarray(chunk.to_numpy(zero_copy_only=False), dtype).view(numpy.uint8).data)


def _values(parts: PartWriter, field: Any, rows: int, chunks: Callable[[], Iterator[Any]]) -> None:
    if rows > MOST_VALUES:
        raise RefusedFile(f"{field.name[:200]!r} has {rows} values that are no numbers, more than are shown")
    number = 0
    for chunk in chunks():
        for value in chunk:
            parts.send("value", f"{field.name}/{number}", text=repr(value.as_py()))
            number += 1


# ---- the check of a Parquet file -------------------------------------------------------------------------------------


def check(source: IO[bytes], parts: PartWriter) -> None:
    """Read all pages of a Parquet file, and verify the checksums of those that have one.

    Sends a value for each row group that is good, [its rows, 0, null], for each column of one that is not, [0, its
    first byte, the group's first row] with the problem, and for each that cannot be read, null with the reason.
    """
    file = parquet.ParquetFile(source, page_checksum_verification=True)
    first = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        is_good = True
        for column in map(group.column, range(group.num_columns)):
            try:
                _read_column(file, number, column, group.num_rows)
            except (MemoryError, NotImplementedError) as error:
                is_good = False
                _send_result(parts, None, _in_words(column, error))
            except (OSError, ValueError) as error:
                is_good = False
                starts = (column.dictionary_page_offset, column.data_page_offset)
                _send_result(parts, [0, min(filter(None, starts)), first], _in_words(column, error))
        if is_good:
            _send_result(parts, [group.num_rows, 0, None])
        first += group.num_rows


def _read_column(file: Any, group: int, column: Any, rows: int) -> None:
    if column.compression in UNREADABLE:
        raise NotImplementedError(f"Arrow cannot unpack {column.compression}")
    at_once = max(1, min(ROWS, BATCH * rows // max(1, column.total_uncompressed_size)))
    options = {"row_groups": [group], "columns": [column.path_in_schema], "use_threads": False}
    left = rows
    for batch in file.iter_batches(at_once, **options):
        left -= batch.num_rows if batch.num_columns else 0
    if left:
        raise OSError(f"it lacks {left} of {rows} rows")


def _in_words(column: Any, error: Exception) -> str:
    return f"column {column.path_in_schema[:200]}: {' '.join(str(error).split()) or type(error).__name__}"


def _send_result(parts: PartWriter, result: object, text: str = "") -> None:
    parts.send("value", json.dumps(result), text=text)


if __name__ == "__main__":
    serve(int(sys.argv[1]), read)
