"""Counts requests for entropy by process, thread, call site and source.

Memory is bounded by MAX_ROWS, whatever the files hold: further rows first lose the names of process and thread, and
then everything.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from reprokit.core.errors import RunDamaged
from reprokit.entropy.files import MATCHES, ClockRead, EntropyEvent, EntropyFile, EntropyHead, EntropyMismatch
from reprokit.entropy.pool import processes

MAX_ROWS = 100_000
MAX_PURPOSES = 1000
MAX_STREAMS = 1_000_000  # of one file
OTHER: Final = "random bytes"
# Libraries by the names of their files; a program without a library asks itself.
_LIBRARIES: Final = (
    (re.compile(r"libpython\d|python\d[\d.]*$|python$|_random\.|_multiprocessing\."), "Python"),
    (re.compile(r"libc10|libtorch|_C\."), "PyTorch"),
    (re.compile(r"libtensorflow|_pywrap_|libtsl"), "TensorFlow"),
    (re.compile(r"libxgboost"), "XGBoost"),
    (re.compile(r"lib_lightgbm"), "LightGBM"),
    (re.compile(r"libstdc\+\+|libc\+\+"), "C++"),
    (re.compile(r"libcrypto|libssl|_hashlib\.|_ssl\."), "OpenSSL"),
    (re.compile(r"libc[.-]|ld-linux|ld-musl"), "the C library"),
    (re.compile(r"libuuid"), "libuuid"),
    (re.compile(r"lib(?:open)?mpi|libpmix|libopen-rte"), "MPI"),
)
# What CPython asks for by this size: CPython's `_Py_HashSecret_t`, and the 624 words of MT19937's state.
_PYTHON: Final = {
    24: "24 bytes, as Python's hash seed takes them",
    2496: "a generator of `random` without a seed",
    16: "128 bits, as a generator of NumPy without a seed (default_rng) or uuid4 takes them",
}
_OTHERS: Final = {
    "PyTorch": "a generator's first seed",
    "C++": "std::random_device",
    "OpenSSL": "the seed of its generator",
    "libuuid": "a UUID",
}


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
    purposes: dict[tuple[str, str], RequestTotals] = field(default_factory=dict)  # by library and purpose
    total: RequestTotals = field(default_factory=RequestTotals)
    threads: int = 0

    def add(self, requester: Requester, counts: RequestTotals) -> None:
        """Add counts to a requester's row, or to a less specific one if there are too many rows."""
        if requester not in self.rows and len(self.rows) >= MAX_ROWS:
            requester = msgspec.structs.replace(requester, process="", incarnation=0, thread="")
        if requester not in self.rows and len(self.rows) >= 2 * MAX_ROWS:
            requester = OTHER_REQUESTERS
        self.rows.setdefault(requester, RequestTotals()).add(counts.requests, counts.bytes, counts.withheld)

    def add_purpose(self, requester: Requester, request: RequestTotals) -> None:
        """Add one request to its library and purpose, or to those of no known library if there are too many."""
        library = library_of(requester.module, requester.program)
        key = library, OTHER if request.withheld else purpose_of(library, requester.source, request.bytes)
        if key not in self.purposes and len(self.purposes) >= MAX_PURPOSES:
            key = "others", OTHER
        self.purposes.setdefault(key, RequestTotals()).add(request.requests, request.bytes, request.withheld)


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
        requests.add_purpose(requester, counts)
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


def library_of(module: str, program: str) -> str:
    """Return the library that asks, in a user's words; the name of its file if that is not known."""
    name = os.path.basename(module or program)
    known = next((words for pattern, words in _LIBRARIES if pattern.match(name)), "")
    return known or re.sub(r"[.-](?:cpython-|abi3|so\b).*$", "", name) or "not told apart"


def purpose_of(library: str, source: str, size: int) -> str:
    """Return what a request of a library is for; general words where its size is that of many."""
    if library == "Python":
        return _PYTHON.get(size, "os.urandom") if source == "getrandom" else OTHER
    return _OTHERS.get(library, OTHER)
