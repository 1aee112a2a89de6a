"""Reads what the processes of a run printed: the files of console/, which native/shim/notes/console.c writes.

The files may come from somebody else: every length is compared with what is there before it is used. Of one process at
most 16 MiB are kept, the first part and the last. A file that is empty or zeros alone was never begun: its process had
no memory, room or descriptors when it printed.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import msgspec

from reprokit.core.bounds import bounded_names
from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.run_files.rundir import CONSOLE, RunDirectory

FORMAT = 1  # RK_CONSOLE_FORMAT of native/urandom_hook.h
ENDING = ".console"
MAX_PROCESSES = 100_000
STREAMS = ("stdout", "stderr")
_PIECE = 64 << 10  # bytes of a record that is written here

_HEAD = struct.Struct("<8sIIQII256s6QQQQ2Q")
_RECORD = struct.Struct("<IBBH")
_HEAD_SIZE, _FIRST, _LAST = 4096, 8384512, 4194304
_AREAS = ((_HEAD_SIZE, _FIRST), (_HEAD_SIZE + _FIRST, _LAST), (_HEAD_SIZE + _FIRST + _LAST, _LAST))
_UNKNOWN = (1 << 64) - 1
_NAME = re.compile(r"[0-9a-f]{16}-[0-9]+\.console")
_LARGEST = _AREAS[-1][0] + _LAST


class PrintedPiece(NamedTuple):
    """What one write printed, or several of the same thread that followed each other."""

    stream: int  # 0: stdout, 1: stderr
    thread: str
    data: bytes


class ConsoleHead(msgspec.Struct, frozen=True):
    """The head of a file."""

    file: str  # its name in console/
    identity: bytes  # of the process, NUL-padded
    incarnation: int
    pid: int
    unseen: int  # bits by stream: C's stdio printed there, which is not kept; above them what forwards() returns
    areas: list[tuple[int, int]]  # numbers and bytes
    dropped: int
    lost: int
    missed: int = 0  # bytes that were printed before the file could be begun
    dropped_lines: tuple[int, int] = (0, 0)  # ends of lines among the dropped bytes, by stream

    @property
    def process(self) -> str:
        """The identity; "0 (start 2)" for a second incarnation."""
        name = self.identity.partition(b"\0")[0].decode("utf-8", "replace")
        return name if self.incarnation == 0 else f"{name} (start {self.incarnation + 1})"

    def forwards(self, stream: int) -> bool:
        """Return whether this is a rank whose text went to its launcher, which prints it."""
        return bool(self.unseen >> (stream + len(STREAMS)) & 1)


class ProcessConsole(msgspec.Struct, frozen=True):
    """What a process printed, as far as it was kept."""

    first: list[PrintedPiece] = []
    last: list[PrintedPiece] = []  # behind what was dropped; empty where nothing was
    dropped: int = 0  # bytes between the two
    lost: int = 0  # bytes after them: a full disk, a limit, a torn end
    dropped_lines: tuple[int, int] | None = (0, 0)  # ends of lines among the dropped bytes, by stream; None: not known
    begun: bool = True  # False where it may have printed, and its file was never begun

    @property
    def is_whole(self) -> bool:
        """Return whether all that it printed is here, as far as the shim saw it."""
        return self.begun and not (self.dropped or self.lost)


NEVER_BEGUN = ProcessConsole(begun=False)


def heads(run: RunDirectory) -> dict[str, ConsoleHead]:
    """Return the head of the file of each process that printed, by the process."""
    heads_by_process: dict[str, ConsoleHead] = {}
    for name in _files(run):
        place = os.path.join(CONSOLE, name)
        data = run.read(place, _LARGEST, _HEAD.size)
        if not any(data) and run.is_never_begun(place):
            continue
        head = _head(run, name, data)
        if heads_by_process.setdefault(head.process, head) is not head:
            raise _damaged(run, name, "is of the same process as another file")
    return heads_by_process


def never_begun(run: RunDirectory) -> list[str]:
    """Return the names of the files that their processes could not begin: what was printed is not known."""
    return [name for name in _files(run) if run.is_never_begun(os.path.join(CONSOLE, name))]


def _files(run: RunDirectory) -> list[str]:
    files = bounded_names(run.path / CONSOLE, ENDING)
    if len(files) > MAX_PROCESSES:
        raise RunDamaged(f"{run.path / CONSOLE} holds more than {MAX_PROCESSES} files; the run cannot be used")
    return files


def read(run: RunDirectory, head: ConsoleHead) -> ProcessConsole:
    """Return what a process printed."""
    data = run.read(os.path.join(CONSOLE, head.file), _LARGEST)
    parts: list[tuple[int, list[PrintedPiece]]] = []
    lost = head.lost
    for (start, room), (number, used) in zip(_AREAS, head.areas, strict=True):
        if used > room or start + used > max(len(data), start):
            raise _damaged(run, head.file, "is cut short")
        pieces, rest = _pieces(data[start : start + used])
        parts.append((number, pieces))
        lost += rest
    first = parts[0][1]
    last = [piece for _, pieces in sorted(parts[1:], key=lambda part: part[0]) for piece in pieces]
    if head.missed:  # so there is no first part
        return ProcessConsole([], last if head.dropped else first + last, head.missed + head.dropped, lost, None)
    if head.dropped:
        is_known = any(head.dropped_lines) and max(head.dropped_lines) <= head.dropped
        return ProcessConsole(first, last, head.dropped, lost, head.dropped_lines if is_known else None)
    return ProcessConsole(first + last, lost=lost)


def _head(run: RunDirectory, name: str, data: bytes) -> ConsoleHead:
    if len(data) < _HEAD.size:
        raise _damaged(run, name, "is cut short")
    magic, version, unseen, _, pid, incarnation, identity, *numbers = _HEAD.unpack_from(data)
    if magic != b"RKCONSOL":
        raise _damaged(run, name, "does not begin as what a process printed")
    if version > FORMAT:
        newer = f"has format {version}, this reprokit reads up to {FORMAT}"
        raise RunTooNew(f"{run.path / CONSOLE / name} {newer}; upgrade reprokit")
    areas = list(zip(numbers[:6:2], numbers[1:6:2], strict=True))
    dropped, lost, missed, *dropped_lines = numbers[6:]
    lines = dropped_lines[0], dropped_lines[1]
    return ConsoleHead(name, identity, incarnation, pid, unseen, areas, dropped, lost, missed, lines)


def _damaged(run: RunDirectory, name: str, problem: str) -> RunDamaged:
    return RunDamaged(f"{run.path / CONSOLE / name} {problem}; the run cannot be used")


def _pieces(area: bytes) -> tuple[list[PrintedPiece], int]:
    """Return what the records of an area hold, and the bytes behind one that a SIGKILL has torn."""
    pieces: list[PrintedPiece] = []
    at = 0
    while at + _RECORD.size <= len(area):
        size, stream, length, zero = _RECORD.unpack_from(area, at)
        start = at + _RECORD.size + length
        if not size or not length or zero or stream > 1 or start + size > len(area):
            break
        thread = area[at + _RECORD.size : start].decode("utf-8", "replace")
        pieces.append(PrintedPiece(stream, thread, area[start : start + size]))
        at = start + size
    return pieces, len(area) - at


def text(pieces: list[PrintedPiece], stream: int) -> bytes:
    """Return what one stream was given."""
    return b"".join(piece.data for piece in pieces if piece.stream == stream)


def joined(pieces: list[PrintedPiece]) -> list[PrintedPiece]:
    """Return the pieces, those of one stream and thread that follow each other as one."""
    groups = groupby(pieces, key=lambda piece: (piece.stream, piece.thread))
    return [PrintedPiece(stream, thread, b"".join(piece.data for piece in group)) for (stream, thread), group in groups]


def encode(head: ConsoleHead, printed: ProcessConsole) -> bytes:
    """Return a file with this head and this text; what there is no room for is left out."""
    areas = [bytearray() for _ in _AREAS]
    _fill(areas, printed.first, range(1 if head.dropped else len(areas)))
    _fill(areas, printed.last, range(1 if head.dropped else 0, len(areas)))
    numbers = [number for index, area in enumerate(areas) for number in (index, len(area))]
    magic = (b"RKCONSOL", FORMAT, head.unseen, len(areas) - 1, head.pid, head.incarnation, head.identity)
    data = _HEAD.pack(*magic, *numbers, head.dropped, head.lost, head.missed, *head.dropped_lines)
    for (start, _), area in zip(_AREAS, areas, strict=True):
        data = data.ljust(start, b"\0") + area if area else data
    return data.ljust(_HEAD_SIZE, b"\0")


def _fill(areas: list[bytearray], pieces: list[PrintedPiece], usable: range) -> None:
    """Append records to the first of the areas that has room, and from then on to no earlier one."""
    at = usable.start
    for piece in pieces:
        thread = piece.thread.encode("utf-8", "replace")[:255]
        for start in range(0, len(piece.data), _PIECE):
            data = piece.data[start : start + _PIECE]
            record = _RECORD.pack(len(data), piece.stream, len(thread), 0) + thread + data
            at += len(areas[at]) + len(record) > _AREAS[at][1]
            if at == usable.stop:
                return
            areas[at] += record


# ---- parts of what a process printed, from several runs ----------------------------------------------------------


class PrintedPart(NamedTuple):
    """The records that a process wrote between two positions: bytes of all records before, also of dropped ones."""

    head: ConsoleHead
    chunks: list[bytes | int]  # records, or how many bytes of them are not there
    lost: int  # bytes behind them

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return sum(_size(chunk) for chunk in self.chunks)


def part_of(run: RunDirectory, name: str, start: int, stop: int | None = None) -> PrintedPart | None:
    """Return a part of a file; None where there is no such file, or it was never begun."""
    place = os.path.join(CONSOLE, name)
    if not _NAME.fullmatch(name) or not run.has(place) or run.is_never_begun(place):
        return None
    data = run.read(place, _LARGEST)
    head = _head(run, name, data)
    chunks: list[bytes | int] = []
    for (_, used), (offset, _) in sorted(zip(head.areas, _AREAS, strict=True), key=lambda area: area[0][0]):
        if offset + used > max(len(data), offset):
            raise _damaged(run, name, "is cut short")
        chunks.append(data[offset : offset + used])
    chunks[1:1] = [head.dropped] if head.dropped else []
    at, end = 0, sum(map(_size, chunks)) if stop is None else stop
    kept: list[bytes | int] = [head.missed] if head.missed and not start else []
    for chunk in chunks:
        begin, rest = max(start - at, 0), min(end - at, _size(chunk))
        at += _size(chunk)
        if begin < rest:
            kept.append(rest - begin if isinstance(chunk, int) else chunk[begin:rest])
    return PrintedPart(head, kept, head.lost)


def _size(chunk: bytes | int) -> int:
    return chunk if isinstance(chunk, int) else len(chunk)


def spliced(parts: list[PrintedPart]) -> bytes:
    """Return a file with these parts of several runs; what there is no room for is dropped in the middle."""
    chunks = [chunk for part in parts for chunk in part.chunks]
    gaps = [index for index, chunk in enumerate(chunks) if isinstance(chunk, int)]
    first = _records(chunks[: gaps[0]] if gaps else chunks)
    room = max((at for at in _ends(first) if at <= _FIRST), default=0) if len(first) > _FIRST else len(first)
    first, last = first[:room], _records(chunks[gaps[-1] :]) if gaps else first[room:]
    surplus = len(last) - _LAST
    last = last[next((at for at in _ends(last) if at >= surplus), 0) :] if surplus > 0 else last
    dropped = sum(map(_size, chunks)) - len(first) - len(last)
    head, unseen = parts[-1].head, 0
    for part in parts:
        unseen |= part.head.unseen
    magic = (b"RKCONSOL", FORMAT, unseen, 1, head.pid, head.incarnation, head.identity)
    rest = dropped, sum(part.lost for part in parts), 0, *([_UNKNOWN] * 2 if dropped else (0, 0))
    data = _HEAD.pack(*magic, 0, len(first), 1, len(last), 2, 0, *rest).ljust(_HEAD_SIZE, b"\0") + first
    return data.ljust(_AREAS[1][0], b"\0") + last if last else data


def _records(chunks: list[bytes | int]) -> bytes:
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))


def _ends(records: bytes) -> Iterator[int]:
    """Yield where each record ends, as far as they are whole."""
    at = 0
    while at + _RECORD.size <= len(records):
        size, _, length, _ = _RECORD.unpack_from(records, at)
        at += _RECORD.size + length + size
        if not size or at > len(records):
            return
        yield at
