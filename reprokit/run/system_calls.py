"""Watches the system calls of a profile run by strace: requests for entropy, and opens of files of processors or GPUs.

The filter is small, so that it hardly slows a training: requests for entropy, opens, and calls that start processes.
The trace is read and removed from the disk while it grows, so that it fills neither disk nor memory.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from reprokit.model.run import SystemCall, SystemCallsFile
from reprokit.model.states import Switch, off
from reprokit.run import prove
from reprokit.run.command import Command
from reprokit.run.strace import PATH, CallParser, ProcessBirth, path_in, process_of
from reprokit.run_files import rundir

TRACE = "strace"  # file in the run's profile directory, during the run
OPTIONS = ("-f", "--seccomp-bpf", "-DDD", "-q", "-s", "0")
STARTING = ("clone", "?clone3", "?fork", "?vfork")
CALLS = ("getrandom", "openat", "?open", "execve", "execveat", *STARTING)
PAUSE = 0.5  # seconds between two reads of the trace
BLOCK = 1 << 20  # bytes read at once
MAX_LINE = 64 << 10
MAX_CALLERS = 10_000
MAX_PROCESSES = 100_000
MAX_DEPTH = 1000  # of parents of a process
KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02  # of fallocate(2)

# Random devices, GPUs and other accelerators, and files that describe the processors.
SOURCES = re.compile(
    rb"/dev/(?:u?random|hwrng|tpm\w*|nvidia[\w-]*|dri/\w+|kfd|accel\d*|accel/\w+|dxg|davinci\w*|apex_\d+|vfio/\w+)"
    rb"|/dev/cpu/\d+/\w+|/proc/(?:cpuinfo|sys/kernel/random/(?:uuid|boot_id))"
    rb"|/sys/devices/system/(?:cpu|node)(?:/[\w/-]*)?|/sys/fs/cgroup/(?:[\w./@-]*/)?(?:cpu\.max|cpuset\.cpus[\w.]*)"
)
_CALL = re.compile(rb"^([a-z0-9_]+)\((.*)$")
_GIVEN = re.compile(rb" = (\d+)\b[^=]*$")
_MANY = re.compile(rb"^(/sys/devices/system/(?:cpu|node)|/sys/fs/cgroup)/.*$")  # reported as one source


class SystemCaller(NamedTuple):
    """A thread that made a call, as the trace names it, with the program that it had executed by then."""

    thread: int
    program: str
    call: str
    source: str


class TraceReduction:
    """The summary of a trace: calls counted by caller, parents of processes, and programs."""

    def __init__(self) -> None:
        self._counts = Counter[SystemCaller]()
        self._births: dict[int, ProcessBirth] = {}
        self._programs: dict[int, str] = {}
        self._parser = CallParser()
        self.left_out = 0  # calls of callers beyond MAX_CALLERS

    def add(self, line: bytes) -> None:
        """Process one line of the trace."""
        if call := self._parser.add(line[:MAX_LINE]):
            thread, _, text = call
            if (match := _CALL.match(text)) and (result := _GIVEN.search(match[2])):
                self._add_call(thread, match[1].decode(), match[2], int(result[1]))

    def _add_call(self, thread: int, call: str, text: bytes, result: int) -> None:
        if call in ("clone", "clone3", "fork", "vfork"):
            if len(self._births) < MAX_PROCESSES:
                self._births[result] = ProcessBirth(thread, b"CLONE_VM" in text, b"CLONE_THREAD" in text)
        elif call in ("execve", "execveat"):
            if len(self._programs) < MAX_PROCESSES or thread in self._programs:
                self._programs[thread] = path_in(text)
        elif call == "getrandom":
            self._count(thread, call, "getrandom")
        elif (path := PATH.search(text)) and SOURCES.fullmatch(path[1]):
            self._count(thread, call, _MANY.sub(rb"\1", path[1]).decode("ascii", "replace"))

    def _count(self, thread: int, call: str, source: str) -> None:
        caller = SystemCaller(thread, self._programs.get(thread, ""), call, source)
        if caller in self._counts or len(self._counts) < MAX_CALLERS:
            self._counts[caller] += 1
        else:
            self.left_out += 1

    def calls(self) -> list[SystemCall]:
        """Return the calls of each process, the most frequent first."""
        counts = Counter[tuple[str, str, str, int]]()
        for caller, count in self._counts.items():
            program = caller.program or self._program(caller.thread)
            counts[caller.call, caller.source, program, process_of(caller.thread, self._births)] += count
        return [
            SystemCall(call=call, source=source, program=program, pid=pid, calls=count)
            for (call, source, program, pid), count in counts.most_common()
        ]

    def _program(self, thread: int) -> str:
        """Return the program of a thread: the one it executed, or that of its nearest parent which did."""
        for _ in range(MAX_DEPTH):
            if thread in self._programs or thread not in self._births:
                break
            thread = self._births[thread].parent
        return self._programs.get(thread, "")


class SystemCalls:
    """The strace of one profile run."""

    def __init__(self, program: str, trace: Path):
        self._program, self._trace = program, trace
        self._reduction = TraceReduction()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_trace, name="system calls", daemon=True)

    def wrap(self, command: Command, variables: Mapping[str, str]) -> tuple[Command, dict[str, str]]:
        """Return the command under strace, and its variables; starts to read the trace."""
        self._start_reading()
        options = (*OPTIONS, "-e", f"trace={','.join(CALLS)}", "-o", str(self._trace))
        return prove.under_strace(self._program, options, command, variables)

    def close(self, run: Path) -> SystemCallsFile:
        """Return the calls of the ended command; removes the trace and what the supervisor recorded of strace."""
        has_ended = prove.has_ended(self._trace)
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._trace.unlink()
        prove.remove_strace_entropy(run / rundir.ENTROPY)
        problem = "" if has_ended else "a process outlived the command: what it called later is not counted"
        return SystemCallsFile(calls=self._reduction.calls(), left_out=self._reduction.left_out, problem=problem)

    def _start_reading(self) -> None:
        """Start the reading thread with all signals blocked: the main thread receives them."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _read_trace(self) -> None:
        lines = _lines(self._trace, self._ended)
        with suppress(OSError):  # a trace that cannot be read has no further lines
            for line in lines:
                self._reduction.add(line)


def _lines(trace: Path, ended: threading.Event) -> Iterator[bytes]:
    """Yield the lines of a growing file until `ended` is set."""
    partial_line, offset, is_last = b"", 0, False
    while not is_last:
        is_last = ended.wait(PAUSE)
        for block in _blocks(trace, offset):
            offset += len(block)
            *whole, partial_line = (partial_line + block).split(b"\n")
            yield from whole
            partial_line = partial_line[:MAX_LINE]


def _blocks(trace: Path, offset: int) -> Iterator[bytes]:
    """Yield the file's content from an offset on, and free its space on the disk afterwards."""
    with suppress(FileNotFoundError), open(trace, "r+b", buffering=0, opener=rundir.open_regular) as file:
        file.seek(offset)
        while block := file.read(BLOCK):
            yield block
        _punch(file.fileno(), file.tell())


def _punch(descriptor: int, end: int) -> None:
    """Free the blocks before this offset; a file system that cannot do so keeps them until the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    libc.fallocate(descriptor, KEEP_SIZE_PUNCH_HOLE, 0, end)


def find(directory: Path) -> SystemCalls | Switch:
    """Return a tested strace for the run with this profile directory, or why it cannot be used."""
    program = shutil.which("strace")
    if program is None:
        return off("strace is not on PATH")
    if why := prove.refused(program, CALLS):
        return off(f"strace cannot trace here: {why}")
    return SystemCalls(program, directory / TRACE)
