"""Who asked for how much: counts requests by process, thread, call site and source.

Made for files of many millions of events: it reads the lengths of records, not their bytes, and does
not compare their checks. Memory is bounded by MAX_ROWS, whatever the files hold: beyond, rows lose the
names of process and thread, and then everything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from reprokit.entropy.files import CHUNK_HEAD, MATCHES, SOURCES, EntropyFile, Head
from reprokit.entropy.pool import processes
from reprokit.errors import RunDamaged

MAX_ROWS = 100_000
MAX_HEADS = 4096  # different events of one stream that are counted apart before they are summed up
MAX_STREAMS = 1_000_000  # of one file
FIRST_RUN = 16  # repeats looked for at once, then twice as many

_EVENT = struct.Struct("<BHBQQ")
_SITE = struct.Struct("<HQB")
_MISMATCH = struct.Struct("<BHBQ")
_CHECK = 4  # bytes behind each record
_EVENT_TAG, _REPEAT_TAG = 3, 4


class Asker(msgspec.Struct, frozen=True):
    """Somebody who asked: a call site in a thread of a process, by one source."""

    process: str  # identity; empty where there were too many to name
    incarnation: int
    thread: str
    program: str  # path of the process's executable
    module: str  # path of the library that asked; empty for the program itself
    offset: int  # of the call in it
    source: str
    match: str = ""  # of a replay, which holds only what was not answered exactly


class RequestTotals(msgspec.Struct):
    """How much was asked for."""

    requests: int = 0
    bytes: int = 0
    withheld: int = 0  # requests of cryptographic libraries, whose bytes are not recorded

    def add(self, requests: int, size: int, withheld: int) -> None:
        self.requests += requests
        self.bytes += size
        self.withheld += withheld


class ProcessAsked(msgspec.Struct, frozen=True):
    """What one process was given; of a replay, how its requests were answered."""

    identity: str
    incarnation: int
    pid: int
    program: str
    asked: RequestTotals
    unrecorded: int  # requests after the shim gave up
    matches: dict[str, int]
    stand_in: int  # --clock: what native code was told to be the process id; 0 where it did not ask


@dataclass
class Asking:
    """A whole run: its processes, and its askers with what each asked for."""

    processes: list[ProcessAsked] = field(default_factory=list)
    processes_left_out: int = 0
    rows: dict[Asker, RequestTotals] = field(default_factory=dict)
    total: RequestTotals = field(default_factory=RequestTotals)
    threads: int = 0

    def add(self, asker: Asker, asked: RequestTotals) -> None:
        """Count it, under a less exact name where there are too many rows."""
        if asker not in self.rows and len(self.rows) >= MAX_ROWS:
            asker = msgspec.structs.replace(asker, process="", incarnation=0, thread="")
        if asker not in self.rows and len(self.rows) >= 2 * MAX_ROWS:
            asker = OTHERS
        self.rows.setdefault(asker, RequestTotals()).add(asked.requests, asked.bytes, asked.withheld)


OTHERS = Asker("", 0, "", "", "", 0, "others")


def who_asked(directory: Path) -> Asking:
    """Count the requests in the entropy files of a run."""
    asking = Asking()
    for file in processes(directory):
        _add_file(asking, file)
    return asking


def _add_file(asking: Asking, file: EntropyFile) -> None:
    head, given = file.head, RequestTotals(*file.keyed)
    streams: dict[int, _Tally] = {}
    for chunk in file.chunks():
        if chunk.stream not in streams and len(streams) >= MAX_STREAMS:
            raise RunDamaged(f"{file.path} holds more than {MAX_STREAMS} threads")
        tally = streams.setdefault(chunk.stream, _Tally())
        tally.read(file, chunk.offset + CHUNK_HEAD, chunk.offset + chunk.size)
    for tally in streams.values():
        for asker, asked in tally.askers(head):
            asking.add(asker, asked)
            given.add(asked.requests, asked.bytes, asked.withheld)
    asking.threads += len(streams) + head.streams
    asking.total.add(given.requests, given.bytes, given.withheld)
    if len(asking.processes) >= MAX_ROWS:
        asking.processes_left_out += 1
        return
    matches = dict(zip(MATCHES, head.matches, strict=True)) if head.mode == 2 else {}
    process = ProcessAsked(
        head.identity, head.incarnation, head.pid, head.program, given, head.uncounted, matches, head.stand_in
    )  # fmt: skip
    asking.processes.append(process)


@dataclass
class _Kind:
    """Events with the same head: how many there were, and how long their records are."""

    source: int
    site: int
    withheld: bool
    given: int
    count: int = 0

    def __post_init__(self) -> None:
        body = 0 if self.withheld else self.given
        self.event_size = 1 + _EVENT.size + body + _CHECK
        self.repeat_size = 1 + body + _CHECK


class _Tally:
    """The records of one thread, counted."""

    def __init__(self) -> None:
        self.thread = ""
        self.sites: dict[int, tuple[str, int]] = {}
        self.kinds: dict[bytes, _Kind] = {}
        self.sums: dict[tuple[int, int, str], RequestTotals] = {}  # by source, site and match
        self.last: _Kind | None = None

    def read(self, file: EntropyFile, start: int, end: int) -> None:
        """Count the records between two places of the file; raises RunDamaged where they are none."""
        data = file.slice(start, end)
        at = 0
        try:
            while at < len(data) and data[at]:
                tag = data[at]
                if tag == _EVENT_TAG:
                    kind = self.last = self._kind(data[at + 1 : at + 1 + _EVENT.size])
                    kind.count += 1
                    at += kind.event_size
                elif tag == _REPEAT_TAG and self.last is not None:
                    at = _repeats(data, at, self.last)
                else:
                    at = self._other(data, at)
        except (struct.error, IndexError, ValueError):
            raise file.damaged(start + at, "no record") from None
        if at > len(data):
            raise file.damaged(end, "a record is cut short")

    def _kind(self, head: bytes) -> _Kind:
        kind = self.kinds.get(head)
        if kind is None:
            if len(self.kinds) >= MAX_HEADS:
                self._sum_up()
            source, site, flags, _, given = _EVENT.unpack(head)
            kind = self.kinds[head] = _Kind(source, site, bool(flags & 1), given)
        return kind

    def _other(self, data: bytes, at: int) -> int:
        tag, body = data[at], at + 1
        if tag == 1:
            end = body + 1 + data[body]
            self.thread = data[body + 1 : end].decode("utf-8", "replace")
        elif tag == 2:
            number, offset, length = _SITE.unpack_from(data, body)
            end = body + _SITE.size + length
            self.sites[number] = (data[body + _SITE.size : end].decode("utf-8", "replace"), offset)
        elif tag == 5:
            source, site, match, asked = _MISMATCH.unpack_from(data, body)
            end = body + _MISMATCH.size
            self._sum(source, site, _name(MATCHES, match)).add(1, asked, 0)
        else:
            raise ValueError(tag)
        return end + _CHECK

    def _sum(self, source: int, site: int, match: str) -> RequestTotals:
        return self.sums.setdefault((source, site, match), RequestTotals())

    def _sum_up(self) -> None:
        """Add the kinds to the sums; the last one stays, as a repeat may follow."""
        for kind in self.kinds.values():
            self._sum(kind.source, kind.site, "").add(
                kind.count, kind.count * kind.given, kind.count if kind.withheld else 0
            )
            kind.count = 0
        self.kinds = {head: kind for head, kind in self.kinds.items() if kind is self.last}

    def askers(self, head: Head) -> Iterator[tuple[Asker, RequestTotals]]:
        """Everybody who asked in this thread."""
        self._sum_up()
        for (source, site, match), asked in self.sums.items():
            module, offset = self.sites.get(site, ("", 0))
            name = _name(SOURCES, source)
            who = (head.identity, head.incarnation, self.thread, head.program)
            if asked.requests:
                yield Asker(*who, module, offset, name, match), asked


def _repeats(data: bytes, at: int, kind: _Kind) -> int:
    """Where the run of repeats that begins here ends: each is as long as the one before."""
    step, number = kind.repeat_size, FIRST_RUN
    while True:
        tags = data[at : at + step * number : step]
        run = len(tags) - len(tags.lstrip(b"\4"))
        kind.count += run
        at += run * step
        if run < number:
            return at
        number *= 2


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"unknown ({number})"
