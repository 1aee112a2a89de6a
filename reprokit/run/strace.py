"""Reads strace's output: which requests for entropy reached the kernel, and which code made each.

The lines come from ``strace -f -i -yy`` over CALLS. Memory mappings, which strace shows as well, turn an
instruction pointer into a library and an offset. strace does not see an exec that the supervisor was
asked about: the brk(NULL) by which loaders and static programs begin stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

READS = ("read", "readv", "pread64", "preadv", "preadv2", "sendfile", "splice", "copy_file_range")
SUBMITTED = "io_submit"  # reads that are given to the kernel in a list
RING = "io_uring_setup"  # reads of a ring are no system calls: only that there is one is seen
CALLS = (
    "getrandom",
    *READS,
    SUBMITTED,
    f"?{RING}",
    "mmap",
    "brk",
    "execve",
    "execveat",
    "clone",
    "?clone3",
    "?fork",
    "?vfork",
)
MAX_PENDING = 100_000  # unfinished calls at one time
MAX_SPACES = 200_000  # processes

# Skips most lines quickly: they are reads of ordinary files.
_INTERESTING = re.compile(
    rb"getrandom\(|<char (?:1:[89]|10:183)>|/random/(?:uuid|boot_id)>|mmap\([^<]*<|brk\(NULL|exec|clone|fork|resumed>"
    rb"|io_uring_setup\("
)
_LINE = re.compile(rb"^(\d+) +(?:\[([0-9a-f?]+)\] )?([\s\S]*)$")
_CALL = re.compile(rb"^([a-z0-9_]+)\(")
_RESULT = re.compile(rb" = (-?\d+|0x[0-9a-f]+)\b[^=]*$")
_RESUMED = re.compile(rb"^<\.\.\. [a-z0-9_]+ resumed>")
_UNFINISHED = b" <unfinished ...>"
_MAPPED = re.compile(rb"^mmap\([^,]+, (\d+), ([A-Z_|]+), [^,]+, \d+<(.+)>, (0x[0-9a-f]+|0)\) += 0x([0-9a-f]+)")
PATH = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(rb"<(/[^<>]*)<char (?:1:[89]|10:183)>>|<(/proc/sys/kernel/random/(?:uuid|boot_id))>")
_SIZES = re.compile(rb"(?:aio_nbytes|iov_len)=(\d+)")
_FLAGS = re.compile(rb", \d+, ([A-Z_|0]+)\) += ")
_ENDING = re.compile(rb"\+\+\+ (?:exited with|killed by) ")
_STARTING = (b"clone", b"fork", b"vfork")


@dataclass(frozen=True)
class EntropyRequest:
    """One successful request for entropy, and the code that made it."""

    process: int
    program: str
    call: str
    source: str  # file that was read; empty for getrandom
    flags: str  # of getrandom; else empty
    given: int  # bytes
    module: str  # path of the library; empty for the program itself
    offset: int
    shimmed: bool  # whether the shim is mapped into the process
    owner: int  # process whose address space it uses


@dataclass
class _AddressSpace:
    """The contents of an address space: its program, and the files mapped into it, the latest last."""

    program: str = ""
    files: list[tuple[int, int, str]] = field(default_factory=list)
    bases: dict[str, int] = field(default_factory=dict)

    def copy(self) -> _AddressSpace:
        return _AddressSpace(self.program, list(self.files), dict(self.bases))

    def find(self, address: int) -> tuple[str, int]:
        """Return the file that holds this address, and the address's offset in the file."""
        for start, end, path in reversed(self.files):
            if start <= address < end:
                return path, address - self.bases.get(path, start)
        return "", address


@dataclass(frozen=True)
class ProcessBirth:
    """The parent of a thread or process, and what the two share."""

    parent: int
    shares: bool  # whether it shares the address space: a thread or a vfork child
    thread: bool


def requests(trace: Path, shim: str) -> Iterator[EntropyRequest]:
    """Yield every request for entropy of the trace in order, and each new ring; `shim` is the shim's path."""
    births = _process_births(trace)
    spaces: dict[int, _AddressSpace] = {}
    for pid, address, text in _interesting_calls(trace):
        space = _space(pid, spaces, births)
        if text.startswith(b"exec"):
            if text.endswith(b" = 0"):
                spaces[pid] = _AddressSpace(path_in(text))
        elif text.startswith(b"brk("):
            if not space.find(address)[0]:  # called by loader or program, which the kernel maps without mmap
                spaces[pid] = _AddressSpace("" if space.files else space.program)
        elif text.startswith(b"mmap("):
            _add_mapping(space, text)
        elif not text.startswith(_STARTING) and (request := _parsed_request(address, text, space)):
            shimmed = any(path == shim for _, _, path in space.files)
            owner = _memory_owner(pid, spaces, births)
            yield replace(request, process=process_of(pid, births), shimmed=shimmed, owner=owner)


def is_whole(trace: Path) -> bool:
    """Return whether strace saw its first process end: strace itself was not killed before."""
    first_pid = b""
    with open(trace, "rb") as file:
        for line in file:
            first_pid = first_pid or line.split(b" ", 1)[0]
            if b" +++ " in line and line.split(b" ", 1)[0] == first_pid and _ENDING.search(line):
                return True
    return False


class CallParser:
    """Joins the two halves of a call, between which strace has printed other calls."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[int, bytes]] = {}

    def add(self, line: bytes) -> tuple[int, int, bytes] | None:
        """Return thread, instruction pointer and text of the call that this line completes; None if none."""
        if not (match := _LINE.match(line)):
            return None
        pid, text = int(match[1]), match[3]
        if resumed := _RESUMED.match(text):
            if pid not in self._pending:
                return None
            address, beginning = self._pending.pop(pid)
            text = beginning + text[resumed.end() :]
        else:
            address = 0 if match[2] is None or b"?" in match[2] else int(match[2], 16)
        if not text.endswith(_UNFINISHED):
            return pid, address, text
        if len(self._pending) < MAX_PENDING:
            self._pending[pid] = (address, text[: -len(_UNFINISHED)])
        return None


def _interesting_calls(trace: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield each interesting call."""
    parser = CallParser()
    with open(trace, "rb") as file:
        for line in file:
            if _INTERESTING.search(line) and (call := parser.add(line.rstrip(b"\n"))):
                yield call


def _process_births(trace: Path) -> dict[int, ProcessBirth]:
    """Return the parent of each process and thread; its line may come after the first line of the child."""
    births: dict[int, ProcessBirth] = {}
    for pid, _, text in _interesting_calls(trace):
        if text.startswith(_STARTING) and (result := _RESULT.search(text)) and len(births) < MAX_SPACES:
            child = int(result[1], 0)
            if child > 0:
                shares = b"CLONE_VM" in text or text.startswith(b"vfork")
                births[child] = ProcessBirth(pid, shares, b"CLONE_THREAD" in text)
    return births


def _space(pid: int, spaces: dict[int, _AddressSpace], births: dict[int, ProcessBirth]) -> _AddressSpace:
    """Return the address space of a process: its own, its parent's, or a copy of the parent's at first sight."""
    if pid in spaces:
        return spaces[pid]
    chain = [pid]
    while chain[-1] not in spaces and chain[-1] in births and births[chain[-1]].parent not in chain:
        chain.append(births[chain[-1]].parent)
    space = spaces.setdefault(chain.pop(), _AddressSpace())
    for child in reversed(chain):
        space = spaces[child] = space if births[child].shares else space.copy()
    return space


def path_in(text: bytes) -> str:
    """Return the first quoted path of a call; empty if there is none."""
    match = PATH.search(text)
    return match[1].decode("utf-8", "replace") if match else ""


def _add_mapping(space: _AddressSpace, text: bytes) -> None:
    if not (match := _MAPPED.match(text)):
        return
    size, start, path = int(match[1]), int(match[5], 16), match[3].decode("utf-8", "replace")
    if int(match[4], 0) == 0:
        space.bases[path] = start
    if b"PROT_EXEC" in match[2] or int(match[4], 0) == 0:
        space.files.append((start, start + size, path))


def process_of(pid: int, births: dict[int, ProcessBirth]) -> int:
    """Return the process that a thread belongs to."""
    for _ in range(MAX_SPACES):
        if pid not in births or not births[pid].thread:
            break
        pid = births[pid].parent
    return pid


def _memory_owner(pid: int, spaces: dict[int, _AddressSpace], births: dict[int, ProcessBirth]) -> int:
    """Return the process whose memory this one uses: a vfork child uses its parent's until it executes a program."""
    for _ in range(MAX_SPACES):
        if pid not in births or spaces.get(births[pid].parent) is not spaces[pid]:
            break
        pid = births[pid].parent
    return pid


def _parsed_request(address: int, text: bytes, space: _AddressSpace) -> EntropyRequest | None:
    """Return the request of this call, with process 0; None if it is no request or got no bytes."""
    call, result = _CALL.match(text), _RESULT.search(text)
    if call is None or result is None or int(result[1], 0) <= 0:
        return None
    name, source, flags = call[1].decode(), "", ""
    if name not in ("getrandom", RING):
        if not (match := _SOURCE.search(text)):
            return None
        source = (match[1] or match[2]).decode("utf-8", "replace")
    elif match := _FLAGS.search(text):
        flags = match[1].decode()
    given = _submitted(text) if name == SUBMITTED else int(result[1], 0)
    module, offset = space.find(address)
    return EntropyRequest(0, space.program, name, source, flags, given, module, offset, False, 0)


def _submitted(text: bytes) -> int:
    """Return how many bytes of random sources a list of reads asks for."""
    entries = filter(_SOURCE.search, text.split(b"{aio_data="))
    return sum(int(size) for entry in entries for size in _SIZES.findall(entry))
