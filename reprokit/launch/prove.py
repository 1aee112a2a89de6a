"""Runs the command under strace, and finds the requests to the kernel that nothing recorded.

What the shim asks for itself it asks from its own code, which strace's instruction pointers show. What
the supervisor answers never reaches strace: the kernel puts a notification before a tracer. So every
request that strace sees from other code than the shim's went past both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from reprokit import entropy
from reprokit.entropy.files import EntropyEvent
from reprokit.errors import NoProof
from reprokit.launch import environment as environments
from reprokit.launch import machine, strace
from reprokit.launch.command import Command
from reprokit.model.run import Proof
from reprokit.printable import bounded

TRACE = "strace"  # in the run directory, while the run lasts
TRIAL_LIMIT = 20  # seconds
PATIENCE = 3.0  # seconds for strace to end after the command, if other processes of the run go on
ITSELF = "strace"  # the identity under which the supervisor meets strace's own processes
PAGE = 4096
MAX_LINES = 100  # of requests named
GIVEN = ("LD_PRELOAD", "PYTHONPATH", *environments.OWN)  # variables of the command's that strace must not have
OPTIONS = ("-f", "--seccomp-bpf", "-DDD", "-i", "-yy", "-q", "-s", "0")
OF_LIBC = ("getrandom", "GRND_NONBLOCK", 8)  # the key of its heap (malloc.c), a temporary name (tempname.c)

K = TypeVar("K")
Names = dict[int, list[tuple[str, str]]]  # by process id: identity and program of each program that it executed


@dataclass(frozen=True)
class Tracing:
    """strace beside one run: where it is, where it writes, and whose requests are the shim's."""

    program: str
    trace: Path
    shim: Path

    def wrap(self, command: Command, variables: Mapping[str, str]) -> tuple[Command, dict[str, str]]:
        """Return the command that traces this one, and its variables: the shim must not load into strace."""
        options = (*OPTIONS, "-e", f"trace={','.join(strace.CALLS)}", "-o", str(self.trace))
        return under_strace(self.program, options, command, variables)

    def proof(self, directory: Path, lost: Iterable[str] = ()) -> Proof:
        """Account for every request, once the command has ended; ``directory`` is that of the entropy files.

        ``lost`` are the identities of programs that could not be recorded.
        """
        problem = (
            ""
            if has_ended(self.trace)
            else "a process outlived the command: what it asks for later is not in the proof"
        )
        forget_itself(directory)
        names, answered, missing = _recorded(directory)
        reliable = _without(names, lost)
        try:
            seen = Counter(
                request for request in strace.requests(self.trace, str(self.shim)) if not _is_of_libc(request)
            )
            if not strace.is_whole(self.trace):
                problem = "strace ended before the command: what was asked for afterwards is not in the proof"
        except OSError as error:
            return Proof(requests=0, accounted=0, problem=f"strace left nothing to read: {error.strerror}")
        finally:
            with suppress(OSError):
                self.trace.unlink()
        # The shim makes them, in a process that left a file: without its plan, it hands requests on.
        strangers = Counter(
            {
                request: n
                for request, n in seen.items()
                if request.module != str(self.shim)
                or (request.process not in reliable and request.owner not in reliable)
            }
        )
        own = seen.total() - strangers.total()
        strangers = _unanswered(strangers, directory)
        missed = strangers.total() + missing.total()
        total = own + answered + strangers.total()
        gave_up = (f"process {name}: {n} requests that could not be recorded" for name, n in sorted(missing.items()))
        lines = list(bounded([*_lines(strangers, names), *gave_up], MAX_LINES))
        return Proof(requests=total, accounted=total - missed, unaccounted=lines, problem=problem)


def _without(names: Names, lost: Iterable[str]) -> Names:
    """Those of processes that executed no program that could not be recorded: strace tells programs by process only."""
    began = {identity.rstrip("+") for identity in lost}
    return {pid: known for pid, known in names.items() if began.isdisjoint(name.rstrip("+") for name, _ in known)}


def find(directory: Path, shim: Path) -> Tracing:
    """strace, tried out; raises NoProof where it is missing or may not trace."""
    program = shutil.which("strace")
    if program is None:
        raise NoProof("--prove needs strace, which is not on PATH; install it, or record without --prove")
    if why := refused(program):
        raise NoProof(f"strace cannot trace here: {why}; in a container allow ptrace, or record without --prove")
    return Tracing(program, directory / TRACE, Path(os.path.realpath(shim)))


def under_strace(
    program: str, options: tuple[str, ...], command: Command, variables: Mapping[str, str]
) -> tuple[Command, dict[str, str]]:
    """Return the command under strace, and strace's variables: the shim must not load into it."""
    own = {name: value for name, value in variables.items() if name not in GIVEN} | {environments.IDENTITY: ITSELF}
    given = [word for name in GIVEN if name in variables for word in ("-E", f"{name}={variables[name]}")]
    return Command(("strace", *options, *given, "--", *command.arguments), program, command.refusal), own


def has_ended(trace: Path) -> bool:
    """Return whether strace has written its last line: it ends with the last process that it traces."""
    deadline = time.monotonic() + PATIENCE
    while is_traced := _is_running(trace):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return not is_traced


def refused(program: str, calls: tuple[str, ...] = strace.CALLS) -> str:
    """Why strace cannot trace a program here with the options needed; empty where it can."""
    own = {name: value for name, value in os.environ.items() if name not in GIVEN}
    filtered = ("-e", f"trace={','.join(calls)}", "-o", os.devnull)
    options = tuple(option for option in OPTIONS if option != "-DDD")
    try:
        return machine.tried([program, *options, *filtered, "--", "true"], TRIAL_LIMIT, env=own)[1]
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _is_running(trace: Path) -> bool:
    """Return whether a process still has this file's name on its command line."""
    wanted = b"\0" + os.fsencode(trace) + b"\0"
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and wanted in Path("/proc", name, "cmdline").read_bytes():
                return True
    return False


def forget_itself(directory: Path) -> None:
    """Remove what the supervisor recorded of strace: it is no part of the run, and a replay has none."""
    for file in entropy.processes(directory):
        if file.head.identity.startswith((f"{ITSELF}@", f"{ITSELF}/", f"{ITSELF}+")):
            file.path.unlink()  # not the pool's: strace has no shim


def _recorded(directory: Path) -> tuple[Names, int, Counter[str]]:
    """Names of processes by pid, requests that the supervisor answered, and those that were not recorded by name."""
    names: Names = {}
    answered, lost = 0, Counter[str]()
    for file in entropy.processes(directory):
        name = file.head.identity.removesuffix("@")
        names.setdefault(file.head.pid, []).append((name, file.head.program))
        if name != file.head.identity:
            answered += sum(chunk.events for chunk in file.chunks()) + file.head.withheld + file.keyed[0]
        if file.head.uncounted:
            lost[name] += file.head.uncounted
    if fresh := entropy.fresh_requests(directory):
        lost["of any name, while the supervisor did not answer"] = fresh
    return names, answered, lost


def _unanswered(strangers: Counter[strace.EntropyRequest], directory: Path) -> Counter[strace.EntropyRequest]:
    """Without those that the supervisor answered: strace sees the first call of a new thread all the same."""
    if not strangers:
        return strangers
    pids = {request.process for request in strangers}
    answered = Counter(key for file in entropy.processes(directory) for key in _answered(file, pids))
    counted = _counted(directory)
    left = Counter[strace.EntropyRequest]()
    for request, number in strangers.items():
        missed = number
        if request.call == "getrandom":
            missed -= _take(answered, (request.process, request.given, request.offset % PAGE), missed)
            missed -= _take(counted, request.process, missed)
        if missed:
            left[request] = missed
    return left


def _take(counts: Counter[K], key: K, wanted: int) -> int:
    taken = min(wanted, counts[key])
    counts[key] -= taken
    return taken


def _counted(directory: Path) -> Counter[int]:
    """Return how many requests of each process the supervisor answered in a keyed run, which has no more of them."""
    counts = Counter[int]()
    for file in entropy.processes(directory):
        if file.head.identity.endswith("@"):
            counts[file.head.pid] += file.keyed[0]
    return counts


def _answered(file: entropy.EntropyFile, pids: set[int]) -> Iterator[tuple[int, int, int]]:
    """Process, size, and place of the call in its page, of what the supervisor gave these processes."""
    if file.head.identity.endswith("@") and file.head.pid in pids:
        for record in file.records():
            if isinstance(record, EntropyEvent) and record.source == "kernel":
                yield file.head.pid, record.given, record.offset % PAGE


def _lines(strangers: Counter[strace.EntropyRequest], names: Names) -> Iterator[str]:
    """Yield a line for each request that nobody accounts for."""
    for request, number in strangers.items():
        times = f", {number} times" if number > 1 else ""
        yield f"{_who(request, names)}: {_what(request)}{times}"


def _is_of_libc(request: strace.EntropyRequest) -> bool:
    """Return whether glibc asked for itself: shim and supervisor leave that to the kernel. Programs ask by the shim."""
    is_libc = os.path.basename(request.module).startswith(("libc.so.", "libc-2."))
    return request.shimmed and is_libc and (request.call, request.flags, request.given) == OF_LIBC


def _who(request: strace.EntropyRequest, names: Names) -> str:
    known = names.get(request.process, [])
    identities = " or ".join(dict.fromkeys(name for name, _ in known[:3]))
    programs = request.program or " or ".join(dict.fromkeys(program for _, program in known[:3])) or "unknown program"
    return f"process {identities}{' ' if identities else ''}(pid {request.process}, {programs})"


def _what(request: strace.EntropyRequest) -> str:
    source = f" of {request.source}" if request.source else ""
    place = f"{os.path.basename(request.module)}+{request.offset:#x}" if request.module else "the program itself"
    return f"{request.call}{source}, {request.given} bytes, by {place}"


def in_words(proof: Proof) -> str:
    """Return what came out, in one line."""
    if proof.problem and not proof.requests:
        return f"there is none: {proof.problem}"
    missed = proof.requests - proof.accounted
    found = (
        f"{missed} of {proof.requests} requests were not recorded: {'; '.join(proof.unaccounted)}"
        if missed
        else f"{proof.requests} requests to the kernel, all accounted for (glibc's own for its heap left aside)"
    )
    return f"{found}; {proof.problem}" if proof.problem else found
