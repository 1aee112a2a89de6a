"""Reads the numbers of a run: losses and logged values of each process, as records of 32 bytes. See docs/format.md.

The files may come from somebody else: every record is compared with its check, and what does not fit is RunDamaged.
Memory is bounded by a block of records, however long the training was. What is done for each record is done by the
standard library's compiled code: a run has millions of them.
"""

from __future__ import annotations

import json
import operator
import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

import msgspec

from reprokit.core import untrusted_json
from reprokit.core.bounds import bounded_names
from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.model.run import SealedFile
from reprokit.run_files import rundir
from reprokit.run_files.rundir import NUMBERS, RunDirectory

FORMAT = 1  # of agent/core/journal.py, as is what follows
ENDING = ".numbers"
MAX_FILE = 4 << 30
MAX_SERIES = 250_000  # of a file
MAX_TEXT = 4096  # bytes of what a series is
BLOCK = 4 << 20  # bytes that are read at once
HEAD = struct.Struct("<8sIII256sI8x")
RECORD, TEXT = struct.Struct("<IIiqQ"), struct.Struct("<II20s")
SIZE = 32
_ABSENT_EPOCH, _ABSENT_STEP = -1 << 31, -1 << 63  # of what has none
_HEAD_CHECKED = HEAD.size - 12
_BODY, _RECORD, _CONTENT = struct.Struct("<4x28s"), struct.Struct("<4xII20s"), struct.Struct("<12x20s")
_PLACE, _PLACES, _STEP = struct.Struct("<iqQ"), struct.Struct("<iq8x"), struct.Struct("<4xq8x")
_CONTENT_SIZE, _BITS_AT = 20, 12  # of the part of a record that is compared: epoch, step, bits
# By dtype: the code of the struct module, and bytes of the value.
_CODES = {"float16": "e", "bfloat16": "H", "float32": "f", "float64": "d", "int": "q", "bool": "?"}
_KEYS = frozenset(["k", "p", "n", "t", "name", "step", "epoch", "value"])
_WIDTHS = {dtype: struct.calcsize(f"<{code}") for dtype, code in _CODES.items()}


class NumberSeries(msgspec.Struct, frozen=True, array_like=True):
    """What the records of one number are values of."""

    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
    kind: Literal["loss", "log"]
    name: str
    dtype: Literal["float16", "bfloat16", "float32", "float64", "int", "bool"]


class SeriesPart(NamedTuple):
    """Successive records of a series, each as the bytes that are compared: epoch, step and bits."""

    process: str
    series: NumberSeries
    before: list[int]  # how many lines the process had written before each
    contents: list[bytes]

    def line(self, index: int) -> dict[str, Any]:
        """Return a record as a line of metrics.jsonl would have it, with the number of the line before it."""
        content = self.contents[index]
        return {"n": self.before[index] - 1, **_line(self.process, self.series, content)}

    @property
    def prefix(self) -> bytes:
        """Return what stands before the content of each record where it is compared."""
        return _prefix(self.series.dtype)

    def place(self, index: int) -> tuple[int, int]:
        """Return epoch and step of a record; -1 for each that is missing."""
        epoch, step, _ = _PLACE.unpack(self.contents[index])
        return (-1 if epoch == _ABSENT_EPOCH else epoch), (-1 if step == _ABSENT_STEP else step)

    @property
    def ordered(self) -> bool:
        """Return whether steps and epochs never go backwards."""
        joined = b"".join(self.contents)
        return all(map(operator.le, _PLACES.iter_unpack(joined), islice(_PLACES.iter_unpack(joined), 1, None)))

    def columns(self) -> tuple[list[int], list[float]]:
        """Return the steps, -2^63 for each that is missing, and the values."""
        joined = b"".join(self.contents)
        steps = [step for (step,) in _STEP.iter_unpack(joined)]
        if self.series.dtype == "bfloat16":
            return steps, [_bfloat16(bits) for _, _, bits in _PLACE.iter_unpack(joined)]
        code = _CODES[self.series.dtype]
        form = struct.Struct(f"<12x{code}{8 - struct.calcsize('<' + code)}x")
        return steps, [value for (value,) in form.iter_unpack(joined)]


class ProcessNumbers:
    """The numbers of one process."""

    def __init__(self, run: RunDirectory, name: str):
        self._run, self.name = run, name
        self._path = run.path / NUMBERS / name
        with self._open() as file:
            if os.fstat(file.fileno()).st_size > MAX_FILE:
                raise self._damaged(0, f"it is larger than {MAX_FILE} bytes")
            data = file.read(HEAD.size)
        if len(data) < HEAD.size:
            raise self._damaged(0, "it is cut short")
        magic, version, self.incarnation, self.pid, identity, check = HEAD.unpack(data)
        if magic != b"RKNUMBER":
            raise self._damaged(0, "it holds no numbers")
        if version > FORMAT:
            raise RunTooNew(f"{self._path} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")
        if check != zlib.crc32(data[:_HEAD_CHECKED]):
            raise self._damaged(0, "its head does not match its check")
        self.process: str = identity.partition(b"\0")[0].decode("utf-8", "replace")
        self.lost = 0  # records before the last that were not written, once all are read

    def _open(self) -> IO[bytes]:
        return os.fdopen(self._run.open(f"{NUMBERS}/{self.name}"), "rb")

    def _damaged(self, offset: int, problem: str) -> RunDamaged:
        return RunDamaged(f"{self._path}, at byte {offset}: {problem}; the run cannot be used")

    def parts(self) -> Iterator[SeriesPart]:
        """Yield all records in parts: those of a series are in order, those of several are not."""
        table = _SeriesTable()
        for offset, block in self._blocks():
            words = memoryview(block).cast("I")
            numbers, before = words[1 :: SIZE // 4].tolist(), words[2 :: SIZE // 4].tolist()
            # No tuple is kept: the garbage collector would look at each again and again.
            contents = [content for (content,) in _CONTENT.iter_unpack(block)]
            columns: defaultdict[int, tuple[list[int], list[bytes]]] = defaultdict(lambda: ([], []))
            if numbers and numbers.count(numbers[0]) == len(numbers):
                columns[numbers[0]] = before, contents
            else:
                for number, lines, content in zip(numbers, before, contents, strict=True):
                    column = columns[number]
                    column[0].append(lines)
                    column[1].append(content)
            try:
                if columns.pop(0, None) is not None:
                    table.add(block)
                parts = [SeriesPart(self.process, table.of(number), *column) for number, column in columns.items()]
                for part in parts:
                    _check_width(part)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                raise self._damaged(offset, f"there or in what follows {error}") from None
            yield from parts

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each record as a line of metrics.jsonl, after how many lines of its process it was written."""
        table = _SeriesTable()
        for offset, block in self._blocks():
            try:
                table.add(block)
                for number, lines, content in _RECORD.iter_unpack(block):
                    if number:
                        yield lines, _line(self.process, table.of(number), content)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                raise self._damaged(offset, f"there or in what follows {error}") from None

    def rewritten(self, rename: Callable[[str], str]) -> Iterator[bytes]:
        """Yield the content of a file with other names of the process and of its series."""
        head = HEAD.pack(b"RKNUMBER", FORMAT, self.incarnation, self.pid, rename(self.process).encode()[:255], 0)
        yield head[:_HEAD_CHECKED] + struct.pack("<I8x", zlib.crc32(head[:_HEAD_CHECKED]))
        table, last = _SeriesTable(), b""
        for offset, block in self._blocks():
            yield last
            try:
                declared = table.add(block)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                raise self._damaged(offset, f"there or in what follows {error}") from None
            records = [block[at : at + SIZE] for at in range(0, len(block), SIZE) if any(block[at + 4 : at + 8])]
            texts = [declaration(msgspec.structs.replace(series, name=rename(series.name))) for series in declared]
            last = b"".join([*texts, *records]) if declared else block
        yield bytes(SIZE * self.lost) + last

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield offset and content of blocks of whole records.

        Zeros are no record: the process was killed or interrupted as it wrote. So is, as the last one, a record that
        does not match its check.
        """
        self.lost, self._empty, self._torn = 0, 0, -1
        with self._open() as file:
            at = file.seek(HEAD.size)
            while block := file.read(BLOCK):
                yield at, self._whole(at, block[: len(block) // SIZE * SIZE])
                at += len(block)
        self.lost += self._torn >= 0

    def _whole(self, start: int, block: bytes) -> bytes:
        """Return the whole records of a block; raises RunDamaged if one follows that does not match its check."""
        if not block.strip(b"\0"):
            self._empty += len(block) // SIZE
            return b""
        checks = memoryview(block).cast("I")[:: SIZE // 4].tolist()
        computed = [zlib.crc32(body) for (body,) in _BODY.iter_unpack(block)]
        if checks == computed and self._torn < 0:
            self.lost, self._empty = self.lost + self._empty, 0
            return block
        kept = []
        for at, check, expected in zip(range(0, len(block), SIZE), checks, computed, strict=True):
            record = block[at : at + SIZE]
            if not any(record):
                self._empty += 1
                continue
            if self._torn >= 0:
                raise self._damaged(self._torn, "a record does not match its check")
            if check == (expected or 1):
                kept.append(record)
                self.lost, self._empty = self.lost + self._empty, 0
            else:
                self._torn = start + at
        return b"".join(kept)


def _check_width(part: SeriesPart) -> None:
    """Raise ValueError if there are bits beyond a value's type."""
    width = _WIDTHS[part.series.dtype]
    joined = b"".join(part.contents)
    if any(joined[_BITS_AT + place :: _CONTENT_SIZE].strip(b"\0") for place in range(width, 8)):
        raise ValueError(f"is a value of type {part.series.dtype} with too many bits")


class _SeriesTable:
    """The series of a file, which are declared before their first record."""

    def __init__(self) -> None:
        self.series: dict[int, NumberSeries] = {}
        self._text, self._left = b"", 0

    def of(self, number: int) -> NumberSeries:
        """Return the series of this number; raises ValueError if there is none."""
        if number not in self.series:
            raise ValueError("is a record of no series")
        return self.series[number]

    def add(self, block: bytes) -> list[NumberSeries]:
        """Add and return what a block declares; raises ValueError and the like."""
        declared = []
        for number, left, some in _RECORD.iter_unpack(block):
            if number:
                continue
            if left != self._left:  # the text before it was interrupted
                self._text = b""
            if len(self._text) + left > MAX_TEXT:
                raise ValueError("is a text that is too long")
            self._text += some[:left]
            self._left = max(0, left - len(some))
            if not self._left:
                declared.append(self._declare(msgspec.convert(untrusted_json.loads(self._text), NumberSeries)))
                self._text = b""
        return declared

    def _declare(self, series: NumberSeries) -> NumberSeries:
        if series.number in self.series or len(self.series) >= MAX_SERIES:
            raise ValueError("is a series that was declared before, or one too many")
        self.series[series.number] = series
        return series


def declaration(series: NumberSeries) -> bytes:
    """Return the records that declare a series."""
    text = json.dumps([series.number, series.kind, series.name, series.dtype], separators=(",", ":")).encode()
    return b"".join(_checked(TEXT.pack(0, len(text) - at, text[at : at + 20])) for at in range(0, len(text), 20))


def record(number: int, lines: int, step: int | None, epoch: int | None, bits: int) -> bytes:
    """Return a record, as agents write it."""
    place = _ABSENT_EPOCH if epoch is None else epoch, _ABSENT_STEP if step is None else step
    return _checked(RECORD.pack(number, lines, *place, bits))


def _checked(body: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(body) or 1) + body


def _bfloat16(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return value


def content_of(line: dict[str, Any]) -> bytes | None:
    """Return the compared content of a line of metrics.jsonl that could be a record, as a record's; else None."""
    value, step, epoch = line.get("value"), line.get("step"), line.get("epoch")
    if line.keys() - _KEYS or not isinstance(value, dict) or value.get("dtype") not in _CODES:
        return None
    bits = value.get("bits")
    try:
        number = int(value["decimal"]) % (1 << 64) if bits is None else int(bits, 16)
        place = _ABSENT_EPOCH if epoch is None else epoch, _ABSENT_STEP if step is None else step
        return _prefix(value["dtype"]) + _PLACE.pack(*place, number)
    except (struct.error, TypeError, ValueError):
        return None


def _prefix(dtype: str) -> bytes:
    return dtype.encode() + b"\0"


def shortest(dtype: str, number: float) -> float:
    """Return the shortest decimal that rounds to a finite number of this type."""
    best, form = number, f"<{_CODES[dtype]}"
    for precision in range(8, 0, -1) if dtype in ("float16", "float32") else ():
        decimal = float(f"{number:.{precision}g}")
        try:
            if struct.pack(form, decimal) != struct.pack(form, number):
                break
        except OverflowError:  # it was rounded up beyond the largest number
            break
        best = decimal
    return best


def _line(process: str, series: NumberSeries, content: bytes) -> dict[str, Any]:
    epoch, step, bits = _PLACE.unpack(content)
    line: dict[str, Any] = {"k": series.kind, "p": process, "name": series.name}
    line["step"] = None if step == _ABSENT_STEP else step
    if series.kind == "log":
        line["epoch"] = None if epoch == _ABSENT_EPOCH else epoch
    line["value"] = _value(series.dtype, bits)
    return line


def _value(dtype: str, bits: int) -> dict[str, Any]:
    """Return a number as a VALUE of metrics.jsonl."""
    data = bits.to_bytes(8, "little")
    if dtype == "bfloat16":
        number: Any = _bfloat16(bits & 0xFFFF)
    else:
        (number,) = struct.unpack_from(f"<{_CODES[dtype]}", data)
    if dtype in ("int", "bool"):
        return {"dtype": dtype, "decimal": number}
    decimal = shortest(dtype, number) if number - number == 0 else None
    return {"dtype": dtype, "bits": data[: _WIDTHS[dtype]][::-1].hex(), "decimal": decimal}


def read(run: RunDirectory) -> Iterator[ProcessNumbers]:
    """Yield the numbers of a run's processes; nothing where the run has none.

    Where run.json holds a seal, damage is raised before the first.
    """
    directory = run.path / NUMBERS
    sealed = run.run.numbers
    if sealed is not None and seal(directory) != sealed:
        raise RunDamaged(f"{directory} was altered since the run ended; the run cannot be used")
    for name in bounded_names(directory, ENDING):
        if not run.is_never_begun(f"{NUMBERS}/{name}"):
            yield ProcessNumbers(run, name)


def seal(directory: Path) -> SealedFile | None:
    """Return size and digest of all files of a finished run; None if there are none."""
    return rundir.seal_files(directory, bounded_names(directory, ENDING), "reprokit-numbers-1")
