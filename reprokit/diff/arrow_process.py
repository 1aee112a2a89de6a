"""Reads Parquet, Arrow and Feather files in a separate process (part_process).

Columns of numbers are tensors, with a mask of missing values; in other columns each value is sent. Compression and row
groups are noise.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    serve(int(sys.argv[1]), read)
