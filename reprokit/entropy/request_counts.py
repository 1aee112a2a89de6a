"""Counts requests for entropy by process, thread, call site and source.

Memory is bounded by MAX_ROWS, whatever the files hold: further rows first lose the names of process and thread, and
then everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from reprokit.core.errors import RunDamaged
from reprokit.entropy.files import MATCHES, ClockRead, EntropyEvent, EntropyFile, EntropyHead, EntropyMismatch
from reprokit.entropy.pool import processes

MAX_ROWS = 100_000
MAX_STREAMS = 1_000_000  # of one file


class Requester(msgspec.Struct, frozen=True):
    """The origin of requests: a call site in a thread of a process, and its source."""

    process: str  # identity; empty if there were too many to name
    incarnation: int
    thread: str
    program: str  # path of the process's executable
    module: str  # path of the calling library; empty for the program itself
    offset: int  # of the call in the module
    source: str
    match: str = ""  # of a replay, which stores only requests that were not answered exactly


class RequestTotals(msgspec.Struct):
    """Sums of requests and bytes."""

    requests: int = 0
    bytes: int = 0
    withheld: int = 0  # requests of cryptographic libraries, whose bytes are not recorded

    def add(self, requests: int, size: int, withheld: int) -> None:
        self.requests += requests
        self.bytes += size
        self.withheld += withheld


class ProcessRequests(msgspec.Struct, frozen=True):
    """The requests of one process; for a replay, how they were answered."""

    identity: str
    incarnation: int
    pid: int
    program: str
    asked: RequestTotals
    unrecorded: int  # requests after the shim gave up
    matches: dict[str, int]
    stand_in: int  # --clock: the process id that native code was given; 0 if it did not ask
    clock_reads: int  # reads of the clock: recorded ones; in a replay those that were told again


@dataclass
class RunRequests:
    """The requests of a run: its processes, and its requesters with their totals."""

    processes: list[ProcessRequests] = field(default_factory=list)
    processes_left_out: int = 0
    rows: dict[Requester, RequestTotals] = field(default_factory=dict)
    total: RequestTotals = field(default_factory=RequestTotals)
    threads: int = 0

    def add(self, requester: Requester, counts: RequestTotals) -> None:
        """Add counts to a requester's row, or to a less specific one if there are too many rows."""
        if requester not in self.rows and len(self.rows) >= MAX_ROWS:
            requester = msgspec.structs.replace(requester, process="", incarnation=0, thread="")
        if requester not in self.rows and len(self.rows) >= 2 * MAX_ROWS:
            requester = OTHER_REQUESTERS
        self.rows.setdefault(requester, RequestTotals()).add(counts.requests, counts.bytes, counts.withheld)


OTHER_REQUESTERS = Requester("", 0, "", "", "", 0, "others")


def who_asked(directory: Path) -> RunRequests:
    """Count the requests in the entropy files of a run."""
    requests = RunRequests()
    for file in processes(directory):
        _add_file(requests, file)
    return requests


def _add_file(requests: RunRequests, file: EntropyFile) -> None:
    head, totals = file.head, RequestTotals(*file.keyed)
    streams = {chunk.stream for chunk in file.request_chunks()}
    if len(streams) > MAX_STREAMS:
        raise RunDamaged(f"{file.path} holds more than {MAX_STREAMS} threads")
    clock_reads = head.clock_reads
    for record in file.records():
        if isinstance(record, ClockRead):
            clock_reads += 1
            continue
        requester, counts = _counted_request(head, record)
        requests.add(requester, counts)
        totals.add(counts.requests, counts.bytes, counts.withheld)
    requests.threads += len(streams) + head.streams
    requests.total.add(totals.requests, totals.bytes, totals.withheld)
    if len(requests.processes) >= MAX_ROWS:
        requests.processes_left_out += 1
        return
    matches = dict(zip(MATCHES, head.matches, strict=True)) if head.mode == 2 else {}
    process = ProcessRequests(
        head.identity, head.incarnation, head.pid, head.program, totals, head.uncounted, matches, head.stand_in,
        clock_reads,
    )  # fmt: skip
    requests.processes.append(process)


def _counted_request(head: EntropyHead, record: EntropyEvent | EntropyMismatch) -> tuple[Requester, RequestTotals]:
    """Return the requester of a record, and its counts."""
    fields = head.identity, head.incarnation, record.thread, head.program, record.module, record.offset, record.source
    if isinstance(record, EntropyMismatch):
        return Requester(*fields, record.match), RequestTotals(1, record.asked, 0)
    return Requester(*fields), RequestTotals(1, record.given, int(record.withheld))
