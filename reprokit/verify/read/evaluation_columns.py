"""Reads the predictions and true values that a run kept (RUN/evaluation/*.npy), bounded, verified, without NumPy."""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from reprokit.core.errors import RunDamaged
from reprokit.run_files.rundir import EVALUATION, RunDirectory
from reprokit.verify.read import metric_lines

MAX_BYTES = 1 << 30  # in all files that the lines of a run refer to; agents write at most a quarter of it
MAX_WIDTH = 1 << 24  # bytes of a row
MAX_CHECKED = 100_000  # columns that are remembered as verified
BLOCK = 1 << 16

_HEADER = re.compile(
    rb"\{'descr': '([<|])([a-zA-Z])(\d{1,5})(?:\[\w{1,8}\])?', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n"
)
_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}


@dataclass(frozen=True)
class EvaluationColumn:
    """Rows of a file that a line of kind evaluation refers to."""

    run: RunDirectory
    facts: metric_lines.ColumnFacts

    @property
    def path(self) -> str:
        return f"{EVALUATION}/{self.facts.file}"

    @property
    def count(self) -> int:
        return self.facts.shape[0]

    @contextmanager
    def open(self) -> Iterator[tuple[BufferedReader, int]]:
        """Yield the file, positioned at the first row, and the bytes per row; raises RunDamaged if rows are missing."""
        with os.fdopen(self.run.open(self.path), "rb") as file:
            start, width, count = self._header(file.read(10), file)
            first = self.facts.row or 0
            if first + self.count > count or start + count * width > os.fstat(file.fileno()).st_size:
                raise self.damaged("is cut short")
            file.seek(start + first * width)
            yield file, width

    def _header(self, head: bytes, file: BufferedReader) -> tuple[int, int, int]:
        """Return the offset of the rows, the bytes per row, and the number of rows in the file."""
        length = int.from_bytes(head[8:10], "little")
        match = _HEADER.fullmatch(file.read(length)) if head[:8] == b"\x93NUMPY\x01\x00" else None
        shape = re.findall(rb"\d{1,19}", match[4]) if match is not None else []
        descr = (match[2] + match[3]).decode() if match is not None else ""
        if (
            match is None
            or [int(size) for size in shape[1:]] != self.facts.shape[1:]
            or descr != _descr(self.facts.dtype)
        ):
            raise self.damaged("is not what its line tells of")
        width = int(match[3]) * (4 if match[2] == b"U" else 1) * math.prod(self.facts.shape[1:])
        if width > MAX_WIDTH:
            raise self.damaged(f"has rows of more than {MAX_WIDTH} bytes")
        return 10 + length, width, int(shape[0])

    def damaged(self, how: str) -> RunDamaged:
        """Return the error for a damaged file."""
        return RunDamaged(f"{self.run.path / self.path} {how}; the run cannot be used")

    def check(self) -> int:
        """Compare the rows with their digest; returns their number of bytes."""
        shape = ",".join(map(str, self.facts.shape[1:]))
        state = hashlib.sha256(f"reprokit-rows-1\0{self.facts.dtype}\0{shape}\0".encode())
        with self.open() as (file, width):
            size = left = self.count * width
            if size > MAX_BYTES:
                raise self.damaged(f"has more than {MAX_BYTES} bytes of predictions")
            while left:
                block = file.read(min(left, BLOCK))
                if not block:
                    raise self.damaged("is cut short")
                state.update(block)
                left -= len(block)
        if "sha256:" + state.hexdigest() != self.facts.digest:
            raise self.damaged("was altered: it does not fit its digest")
        return size


class EvaluationChecker:
    """Verifies the columns that each line of kind evaluation refers to as it is read, each column once."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._checked: set[tuple[str | None, int | None, str]] = set()
        self._bytes = 0

    def __call__(self, line: metric_lines.MetricLine | None) -> None:
        if isinstance(line, metric_lines.EvaluationLine):
            for facts in (line.predictions, line.truth):
                if facts is not None and facts.file is not None:
                    self._check(EvaluationColumn(self._run, facts))

    def _check(self, column: EvaluationColumn) -> None:
        facts = column.facts
        key = (facts.file, facts.row, f"{facts.digest} {facts.dtype} {facts.shape}")
        if key not in self._checked:
            self._bytes += column.check()
            if self._bytes > MAX_BYTES:
                raise column.damaged(f"and others hold more than {MAX_BYTES} bytes of predictions")
            if len(self._checked) >= MAX_CHECKED:
                self._checked.clear()
            self._checked.add(key)


def _descr(dtype: str) -> str:
    """Return kind and size as the file's header has them for this type; narrow floats are stored as integers."""
    match = re.fullmatch(r"(bool|uint|int|float|complex|datetime|timedelta)(\d*)(\[\w+\])?", dtype)
    if match is None:
        narrow = {"bfloat16": "u2", "float8": "u1"}
        return narrow.get(dtype.partition("_")[0], dtype)
    letter = {"uint": "u", "datetime": "M", "timedelta": "m"}.get(match[1], match[1][0])
    return f"{letter}{int(match[2] or 8) // 8}"


def decoder(dtype: str, size: int) -> Callable[[bytes], list[Any]]:
    """Return a function that converts bytes to values of this type and size; unknown types give hexadecimal digits."""
    code = _CODES.get(dtype)
    if code is not None:
        return lambda data: list(struct.unpack(f"<{len(data) // size}{code}", data))
    if dtype == "bfloat16":
        return _bfloat16
    if re.fullmatch(r"U\d{1,5}", dtype):
        return lambda data: [_text(data[start : start + size]) for start in range(0, len(data), size)]
    return lambda data: [data[start : start + size].hex() for start in range(0, len(data), size)]


def _bfloat16(data: bytes) -> list[Any]:
    halves = struct.unpack(f"<{len(data) // 2}H", data)
    return list(struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves))))


def _text(data: bytes) -> str:
    return data.decode("utf-32-le", "replace").rstrip("\0")
