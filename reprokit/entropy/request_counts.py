"""Who asked for how much: counts requests by process, thread, call site and source.

Memory is bounded by MAX_ROWS, whatever the files hold: beyond, rows lose the names of process and thread, and then
everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from reprokit.entropy.files import MATCHES, EntropyEvent, EntropyFile, EntropyHead, EntropyMismatch
from reprokit.entropy.pool import processes
from reprokit.errors import RunDamaged

MAX_ROWS = 100_000
MAX_STREAMS = 1_000_000  # of one file


class Requester(msgspec.Struct, frozen=True):
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


class ProcessRequests(msgspec.Struct, frozen=True):
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
class RunRequests:
    """A whole run: its processes, and its askers with what each asked for."""

    processes: list[ProcessRequests] = field(default_factory=list)
    processes_left_out: int = 0
    rows: dict[Requester, RequestTotals] = field(default_factory=dict)
    total: RequestTotals = field(default_factory=RequestTotals)
    threads: int = 0

    def add(self, asker: Requester, asked: RequestTotals) -> None:
        """Count it, under a less exact name where there are too many rows."""
        if asker not in self.rows and len(self.rows) >= MAX_ROWS:
            asker = msgspec.structs.replace(asker, process="", incarnation=0, thread="")
        if asker not in self.rows and len(self.rows) >= 2 * MAX_ROWS:
            asker = OTHERS
        self.rows.setdefault(asker, RequestTotals()).add(asked.requests, asked.bytes, asked.withheld)


OTHERS = Requester("", 0, "", "", "", 0, "others")


def who_asked(directory: Path) -> RunRequests:
    """Count the requests in the entropy files of a run."""
    asking = RunRequests()
    for file in processes(directory):
        _add_file(asking, file)
    return asking


def _add_file(asking: RunRequests, file: EntropyFile) -> None:
    head, given = file.head, RequestTotals(*file.keyed)
    streams = {chunk.stream for chunk in file.chunks()}
    if len(streams) > MAX_STREAMS:
        raise RunDamaged(f"{file.path} holds more than {MAX_STREAMS} threads")
    for record in file.records():
        asker, asked = _asked(head, record)
        asking.add(asker, asked)
        given.add(asked.requests, asked.bytes, asked.withheld)
    asking.threads += len(streams) + head.streams
    asking.total.add(given.requests, given.bytes, given.withheld)
    if len(asking.processes) >= MAX_ROWS:
        asking.processes_left_out += 1
        return
    matches = dict(zip(MATCHES, head.matches, strict=True)) if head.mode == 2 else {}
    process = ProcessRequests(
        head.identity, head.incarnation, head.pid, head.program, given, head.uncounted, matches, head.stand_in
    )  # fmt: skip
    asking.processes.append(process)


def _asked(head: EntropyHead, record: EntropyEvent | EntropyMismatch) -> tuple[Requester, RequestTotals]:
    """Return who made a request, and how much it asked for."""
    who = head.identity, head.incarnation, record.thread, head.program, record.module, record.offset, record.source
    if isinstance(record, EntropyMismatch):
        return Requester(*who, record.match), RequestTotals(1, record.asked, 0)
    return Requester(*who), RequestTotals(1, record.given, int(record.withheld))
