"""Watches the system calls of a profile run by strace: who asked for entropy, and who opened a processor's or GPU's
files.

The filter is small, so that a training hardly notices: requests for entropy, opens, and what tells processes apart.
The trace is read while it grows and taken from the disk again, so that neither disk nor memory grow with the run.
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

from reprokit import rundir
from reprokit.launch import prove
from reprokit.launch.command import Command
from reprokit.launch.strace import PATH, CallParser, ProcessBirth, path_in, process_of
from reprokit.model.run import SystemCall, SystemCallsFile
from reprokit.model.states import Switch, off

TRACE = "strace"  # in the run's profile directory, while the run lasts
OPTIONS = ("-f", "--seccomp-bpf", "-DDD", "-q", "-s", "0")
STARTING = ("clone", "?clone3", "?fork", "?vfork")
CALLS = ("getrandom", "openat", "?open", "execve", "execveat", *STARTING)
PAUSE = 0.5  # seconds between two looks at the trace
BLOCK = 1 << 20  # bytes read at once
MAX_LINE = 64 << 10
MAX_CALLERS = 10_000
MAX_PROCESSES = 100_000
MAX_DEPTH = 1000  # of who made whom
KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02  # of fallocate(2)

# Devices of random bytes, of GPUs and other accelerators, and what tells of the processors.
SOURCES = re.compile(
    rb"/dev/(?:u?random|hwrng|tpm\w*|nvidia[\w-]*|dri/\w+|kfd|accel\d*|accel/\w+|dxg|davinci\w*|apex_\d+|vfio/\w+)"
    rb"|/dev/cpu/\d+/\w+|/proc/(?:cpuinfo|sys/kernel/random/(?:uuid|boot_id))"
    rb"|/sys/devices/system/(?:cpu|node)(?:/[\w/-]*)?|/sys/fs/cgroup/(?:[\w./@-]*/)?(?:cpu\.max|cpuset\.cpus[\w.]*)"
)
_CALL = re.compile(rb"^([a-z0-9_]+)\((.*)$")
_GIVEN = re.compile(rb" = (\d+)\b[^=]*$")
_MANY = re.compile(rb"^(/sys/devices/system/(?:cpu|node)|/sys/fs/cgroup)/.*$")  # shown as one


class SystemCaller(NamedTuple):
    """A thread that made a call, as the trace names it, and the program it then had executed itself."""

    thread: int
    program: str
    call: str
    source: str


class TraceReduction:
    """What is kept of a trace: calls counted by caller, births, and programs."""

    def __init__(self) -> None:
        self._counts = Counter[SystemCaller]()
        self._births: dict[int, ProcessBirth] = {}
        self._programs: dict[int, str] = {}
        self._parser = CallParser()
        self.left_out = 0  # calls of more callers than are told apart

    def add(self, line: bytes) -> None:
        """One line of the trace."""
        if call := self._parser.add(line[:MAX_LINE]):
            thread, _, text = call
            if (match := _CALL.match(text)) and (given := _GIVEN.search(match[2])):
                self._add_call(thread, match[1].decode(), match[2], int(given[1]))

    def _add_call(self, thread: int, call: str, text: bytes, given: int) -> None:
        if call in ("clone", "clone3", "fork", "vfork"):
            if len(self._births) < MAX_PROCESSES:
                self._births[given] = ProcessBirth(thread, b"CLONE_VM" in text, b"CLONE_THREAD" in text)
        elif call in ("execve", "execveat"):
            if len(self._programs) < MAX_PROCESSES or thread in self._programs:
                self._programs[thread] = path_in(text)
        elif call == "getrandom":
            self._count(thread, call, "getrandom")
        elif (found := PATH.search(text)) and SOURCES.fullmatch(found[1]):
            self._count(thread, call, _MANY.sub(rb"\1", found[1]).decode("ascii", "replace"))

    def _count(self, thread: int, call: str, source: str) -> None:
        caller = SystemCaller(thread, self._programs.get(thread, ""), call, source)
        if caller in self._counts or len(self._counts) < MAX_CALLERS:
            self._counts[caller] += 1
        else:
            self.left_out += 1

    def calls(self) -> list[SystemCall]:
        """Return the calls by process, the most frequent first."""
        found = Counter[tuple[str, str, str, int]]()
        for caller, number in self._counts.items():
            program = caller.program or self._program(caller.thread)
            found[caller.call, caller.source, program, process_of(caller.thread, self._births)] += number
        return [
            SystemCall(call=call, source=source, program=program, pid=pid, calls=number)
            for (call, source, program, pid), number in found.most_common()
        ]

    def _program(self, thread: int) -> str:
        """Return what a thread runs: the program that it executed, or that of whoever made it."""
        for _ in range(MAX_DEPTH):
            if thread in self._programs or thread not in self._births:
                break
            thread = self._births[thread].parent
        return self._programs.get(thread, "")


class SystemCalls:
    """strace beside one profile run."""

    def __init__(self, program: str, trace: Path):
        self._program, self._trace = program, trace
        self._reduction = TraceReduction()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_along, name="system calls", daemon=True)

    def wrap(self, command: Command, variables: Mapping[str, str]) -> tuple[Command, dict[str, str]]:
        """Return the command that traces this one, and its variables; reading begins now."""
        self._start_reading()
        options = (*OPTIONS, "-e", f"trace={','.join(CALLS)}", "-o", str(self._trace))
        return prove.under_strace(self._program, options, command, variables)

    def close(self, run: Path) -> SystemCallsFile:
        """Return what was seen, once the command has ended; the trace and what strace left of itself are gone then."""
        ended = prove.has_ended(self._trace)
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._trace.unlink()
        prove.remove_strace_entropy(run / rundir.ENTROPY)
        problem = "" if ended else "a process outlived the command: what it called later is not counted"
        return SystemCallsFile(calls=self._reduction.calls(), left_out=self._reduction.left_out, problem=problem)

    def _start_reading(self) -> None:
        """Signals are the main thread's to take: the thread is made with all of them blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _read_along(self) -> None:
        lines = _lines(self._trace, self._ended)
        with suppress(OSError):  # a trace that cannot be read has no further lines
            for line in lines:
                self._reduction.add(line)


def _lines(trace: Path, ended: threading.Event) -> Iterator[bytes]:
    """Yield the lines of a file that grows, until it has ended."""
    rest, at, is_last = b"", 0, False
    while not is_last:
        is_last = ended.wait(PAUSE)
        for block in _blocks(trace, at):
            at += len(block)
            *whole, rest = (rest + block).split(b"\n")
            yield from whole
            rest = rest[:MAX_LINE]


def _blocks(trace: Path, at: int) -> Iterator[bytes]:
    """Yield what the file holds from this place on, which is taken from the disk then."""
    with suppress(FileNotFoundError), open(trace, "r+b", buffering=0, opener=rundir.open_regular) as file:
        file.seek(at)
        while block := file.read(BLOCK):
            yield block
        _punch(file.fileno(), file.tell())


def _punch(descriptor: int, end: int) -> None:
    """Give back the blocks before this place; a file system that cannot keeps them until the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    libc.fallocate(descriptor, KEEP_SIZE_PUNCH_HOLE, 0, end)


def find(directory: Path) -> SystemCalls | Switch:
    """strace for the run whose profile directory this is, tried out; or why it cannot be used."""
    program = shutil.which("strace")
    if program is None:
        return off("strace is not on PATH")
    if why := prove.refused(program, CALLS):
        return off(f"strace cannot trace here: {why}")
    return SystemCalls(program, directory / TRACE)
