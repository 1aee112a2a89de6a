"""Reads the entropy file of one process, record by record; docs/format.md specifies the format.

The file may be untrusted: every length is checked against the file's size before it is used.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from reprokit.core import native
from reprokit.core.bounds import bounded_names, open_file
from reprokit.core.errors import RunDamaged, RunTooNew

FORMAT = 4  # RK_FORMAT of native/urandom_hook.h
ENDING = ".entropy"
MAX_CHUNK = 16 << 20  # bytes of a chunk with records: a longer request has several
HEAD, CHUNK_HEAD = 1024, 48
RECORD = 1  # mode of a recording's file
CLOCK_STREAM = b"#clock"  # suffix of the stream for a thread's reads of the clock
_HEAD = struct.Struct("<8sIIQII256s256sQ QII4Q4Q10Q")
_CHUNK = struct.Struct("<IIQQQQQ")
_EVENT = struct.Struct("<BHBQQ")
_SITE = struct.Struct("<HQB")
_MISMATCH = struct.Struct("<BHBQ")
_TIME = struct.Struct("<HI")  # place, nanoseconds since the last time of the stream
_DATE = struct.Struct("<HQ")  # place, nanoseconds since 1970

SOURCES = (
    "", "getrandom", "getentropy", "arc4random", "arc4random_buf", "arc4random_uniform",
    "syscall", "device", "stream", "feeder", "random_device", "kernel", "kernel_device", "text", "uuid", "at_random",
    "clock",
)  # fmt: skip
RUNTIMES = {1: "Go's crypto/rand", 2: "Java's SecureRandom", 4: "OpenSSL in Node, which also seeds Math.random(),"}
CALENDAR_ENDS = {1: "read the clock more often than is recorded", 2: "had no room for more reads of the clock"}
MATCHES = ("exact", "moved", "derived", "live")
REASONS = (
    "", "the disk was full", "the file size limit was reached", "the run directory could not be written",
    "memory could not be mapped", "the random profile is damaged",
)  # fmt: skip


class EntropyHead(msgspec.Struct, frozen=True):
    """The head of an entropy file: its process, and counts of its requests."""

    mode: int
    started_ns: int
    pid: int
    incarnation: int
    identity: str
    program: str
    used: int
    gave_up: int
    gave_up_errno: int
    matches: tuple[int, ...]
    bytes: tuple[int, ...]
    withheld: int
    uncounted: int
    clock_reads: int
    clock_past: int
    streams: int
    stand_in: int
    ended: int
    runtimes: int  # runtimes whose requests were withheld, as bits of RUNTIMES
    calendar_full: int  # why later reads of the clock were not recorded: 0, or as of CALENDAR_ENDS
    unprinted: int  # bytes that were printed while no console file could be opened


class EntropyChunk(msgspec.Struct, frozen=True):
    """A part of the file that belongs to one thread's stream."""

    offset: int
    size: int
    stream: int
    ordinal: int
    events: int
    bytes: int


class EntropyEvent(msgspec.Struct, frozen=True):
    """A request for entropy and its answer; `data` is empty if it was withheld."""

    thread: str
    source: str
    module: str
    offset: int
    asked: int
    given: int
    withheld: bool
    data: bytes


class ClockRead(msgspec.Struct, frozen=True):
    """A recorded read of the clock, by a place of the program: a number that is the same in every run."""

    thread: str
    place: int
    time: int  # nanoseconds since 1970


class EntropyMismatch(msgspec.Struct, frozen=True):
    """A request of a replay that was not answered by the next event of its own thread."""

    thread: str
    source: str
    module: str
    offset: int
    asked: int
    match: str


def entropy_files(directory: Path) -> list[Path]:
    """Return the entropy files of a run sorted by name: those of processes, and the shared pool."""
    return [directory / name for name in bounded_names(directory, ENDING)]


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


class ByteData(Protocol):
    """The bytes of a file, mapped or in memory."""

    def __len__(self) -> int: ...
    def __getitem__(self, key: slice, /) -> bytes: ...
    def close(self) -> None: ...


class EntropyFile:
    """The mapped file of one process; `records` yields its events and mismatches."""

    def __init__(self, path: Path, data: ByteData | None = None, place: str = ""):
        self.path, self._place = path, place
        self._data = mapped(path) if data is None else data
        self.head = self._read_head()

    def damaged(self, offset: int, what: str) -> RunDamaged:
        """Return the error for an offset in this file."""
        return damaged(self.path, offset, f"{self._place}{what}")

    def _read_head(self) -> EntropyHead:
        data = self._data
        if len(data) < HEAD:
            raise self.damaged(len(data), "the head is cut short")
        magic, version, mode, started, pid, incarnation, identity, program, check, used, reason, errno, *rest = (
            _HEAD.unpack(data[: _HEAD.size])
        )
        if magic != b"RKENTROP":
            raise self.damaged(0, "not an entropy file")
        if check != native.checker()(data[:544], 0):
            raise self.damaged(0, "the head does not match its check")
        if version > FORMAT:
            raise RunTooNew(f"{self.path} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")
        if not HEAD <= used <= len(data) or reason >= len(REASONS):
            raise self.damaged(552, "impossible counts")
        counts = tuple(rest)
        return EntropyHead(
            mode, started, pid, incarnation, _text(identity), _text(program), used, reason, errno,
            counts[:4], counts[4:8], *counts[8:],
        )  # fmt: skip

    @property
    def keyed(self) -> tuple[int, int]:
        """Return requests and bytes that a keyed recording answered from its key; zeros for any other."""
        # A continued run counts what it was given again, and has it in chunks.
        is_keyed = self.head.mode == RECORD and next(self.request_chunks(), None) is None
        return (self.head.matches[0], self.head.bytes[0]) if is_keyed else (0, 0)

    @property
    def size(self) -> int:
        return len(self._data)

    def chunks(self) -> Iterator[EntropyChunk]:
        """Yield the chunks in file order, without those of no stream."""
        offset, check = HEAD, native.checker()
        while offset < self.head.used:
            if offset + CHUNK_HEAD > self.head.used:
                raise self.damaged(offset, "a chunk is cut short")
            head = self._data[offset : offset + CHUNK_HEAD]
            magic, units, stream, ordinal, expected, events, given = _CHUNK.unpack(head)
            size = units * 64
            if magic != 0x4B4E4843 or expected != check(head[:24], 0):
                raise self.damaged(offset, "a chunk's head does not match its check")
            if not CHUNK_HEAD <= size <= self.head.used - offset or (stream and size > MAX_CHUNK):
                raise self.damaged(offset, "a chunk of impossible size")
            if stream:
                yield EntropyChunk(offset, size, stream, ordinal, events, given)
            offset += size

    def records(self) -> Iterator[EntropyEvent | EntropyMismatch | ClockRead]:
        """Yield every event, mismatch and read of the clock, in order for each stream; streams alternate by chunk."""
        streams: dict[int, _RecordStream] = {}
        for chunk in self.chunks():
            stream = streams.setdefault(chunk.stream, _RecordStream(self))
            yield from stream.read(chunk)

    def request_chunks(self) -> Iterator[EntropyChunk]:
        """Yield the chunks like chunks(), without those that hold reads of the clock."""
        clocks: set[int] = set()
        for chunk in self.chunks():
            if chunk.ordinal == 0 and self._is_of_the_clock(chunk):
                clocks.add(chunk.stream)
            if chunk.stream not in clocks:
                yield chunk

    def _is_of_the_clock(self, chunk: EntropyChunk) -> bool:
        """Return whether this first chunk of a stream shows that it holds reads of the clock."""
        start = chunk.offset + CHUNK_HEAD + 1
        length = self.slice(start, start + 1)[0] if start < len(self._data) else 0
        return self.slice(start + 1, start + 1 + length).endswith(CLOCK_STREAM)

    def slice(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]

    def close(self) -> None:
        self._data.close()


def damaged(path: Path, offset: int, what: str) -> RunDamaged:
    """Return the error for an offset in a file."""
    return RunDamaged(f"{path}: {what} at byte {offset}: the random profile was damaged or cut; record again")


class BytesInMemory(bytes):
    """Bytes in memory with the interface of mapped ones."""

    def close(self) -> None:
        """Do nothing, as there is nothing to release."""


def mapped(path: Path) -> ByteData:
    """Return the bytes of a regular file."""
    with os.fdopen(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else BytesInMemory()


class _RecordStream:
    """The decoding state of one thread's records: its name, call sites and last event."""

    def __init__(self, file: EntropyFile):
        self.file = file
        self.check = native.checker()
        self.previous = 0
        self.ordinal = 0
        self.thread = ""
        self.sites: dict[int, tuple[str, int]] = {}
        self.last: tuple[int, int, int, int, int] | None = None
        self.time = 0  # of the last read of the clock

    def read(self, chunk: EntropyChunk) -> Iterator[EntropyEvent | EntropyMismatch | ClockRead]:
        if chunk.ordinal != self.ordinal:
            raise self.file.damaged(chunk.offset, "a chunk is missing")
        self.ordinal += 1
        data = self.file.slice(chunk.offset + CHUNK_HEAD, chunk.offset + chunk.size)
        position = events = 0
        while position < len(data) and data[position]:
            end = self._end(data, position, chunk.offset + CHUNK_HEAD)
            record = self._record(data[position], data[position + 1 : end])
            position = end + 4
            if record is not None:
                events += isinstance(record, ClockRead) or (isinstance(record, EntropyEvent) and not record.withheld)
                yield record
        if events < chunk.events:  # otherwise a tag overwritten by zero would hide the following records
            raise self.file.damaged(chunk.offset + CHUNK_HEAD + position, "a record is missing")

    def _end(self, data: bytes, position: int, base: int) -> int:
        """Return the end of the record at this position, after its check was compared."""
        try:
            end = position + 1 + self._length(data, position)
        except (struct.error, IndexError, TypeError, ValueError):
            raise self.file.damaged(base + position, "no record") from None
        if end + 4 > len(data):
            raise self.file.damaged(base + position, "a record is cut short")
        expected = int.from_bytes(data[end : end + 4], "little")
        self.previous = self.check(data[position + 1 : end], self.previous << 8 | data[position]) & 0xFFFFFFFF
        if self.previous != expected:
            raise self.file.damaged(base + position, "a record does not match its check")
        return end

    def _length(self, data: bytes, position: int) -> int:
        tag = data[position]
        if tag == 1:
            return 1 + data[position + 1]
        if tag == 2:
            return _SITE.size + int(_SITE.unpack_from(data, position + 1)[2])
        if tag == 3:
            _, _, flags, _, given = _EVENT.unpack_from(data, position + 1)
            return _EVENT.size + (0 if flags & 1 else int(given))
        if tag == 4 and self.last is not None:
            return 0 if self.last[2] & 1 else self.last[4]
        sizes = {5: _MISMATCH.size, 6: _TIME.size, 7: _DATE.size}
        if tag in sizes:
            return sizes[tag]
        raise ValueError(tag)

    def _record(self, tag: int, body: bytes) -> EntropyEvent | EntropyMismatch | ClockRead | None:
        if tag == 1:
            self.thread = body[1:].decode("utf-8", "replace")
        elif tag == 2:
            number, offset, _ = _SITE.unpack_from(body)
            self.sites[number] = (body[_SITE.size :].decode("utf-8", "replace"), offset)
        elif tag == 3:
            self.last = _EVENT.unpack_from(body)
            return self._event(self.last, body[_EVENT.size :])
        elif tag == 4 and self.last is not None:
            return self._event(self.last, body)
        elif tag == 5:
            source, site, match, asked = _MISMATCH.unpack_from(body)
            module, offset = self.sites.get(site, ("", 0))
            return EntropyMismatch(self.thread, _name(SOURCES, source), module, offset, asked, _name(MATCHES, match))
        elif tag in (6, 7):
            place, time = (_TIME if tag == 6 else _DATE).unpack(body)
            self.time = time + (self.time if tag == 6 else 0)
            return ClockRead(self.thread, place, self.time)
        return None

    def _event(self, fields: tuple[int, int, int, int, int], data: bytes) -> EntropyEvent:
        source, site, flags, asked, given = fields
        module, offset = self.sites.get(site, ("", 0))
        return EntropyEvent(self.thread, _name(SOURCES, source), module, offset, asked, given, bool(flags & 1), data)


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"unknown ({number})"
