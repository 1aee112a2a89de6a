"""Runs the command under strace, and finds requests to the kernel that were not recorded.

The shim makes its own requests from its own code, which strace's instruction pointers show. Requests
that the supervisor answers never reach strace: the kernel notifies it before a tracer. So a request
that strace sees from code other than the shim's was seen by neither.
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
from reprokit.core.errors import NoProof
from reprokit.core.printable import bounded, listed
from reprokit.entropy.files import EntropyEvent
from reprokit.model.run import Proof
from reprokit.run import environment as environments
from reprokit.run import strace
from reprokit.run.command import Command
from reprokit.run.short_command import tried

TRACE = "strace"  # file in the run directory, during the run
TRIAL_LIMIT = 20  # seconds
PATIENCE = 3.0  # seconds for strace to end after the command, if other processes of the run still run
ITSELF = "strace"  # identity by which the supervisor knows strace's own processes
PAGE = 4096
MAX_LINES = 100  # requests named in the proof
GIVEN = ("LD_PRELOAD", "PYTHONPATH", *environments.OWN)  # the command's variables that strace must not inherit
OPTIONS = ("-f", "--seccomp-bpf", "-DDD", "-i", "-yy", "-q", "-s", "0", "-e", f"abbrev=!{strace.SUBMITTED}")
MAX_USERS = 5  # of io_uring
OUTLIVED = "a process outlived the command: what it asks for later is not in the proof"
CUT = "strace ended before the command: what was asked for afterwards is not in the proof"
UNSEEN_READS = "what is read through it is no system call, and not in the proof"
OF_LIBC = ("getrandom", "GRND_NONBLOCK", 8)  # glibc's heap key (malloc.c) and temporary names (tempname.c)

K = TypeVar("K")
Names = dict[int, list[tuple[str, str]]]  # by process id: identity and program of each program that it executed


@dataclass(frozen=True)
class Tracing:
    """The strace of one run: its program, its output file, and the shim whose requests are expected."""

    program: str
    trace: Path
    shim: Path

    def wrap(self, command: Command, variables: Mapping[str, str]) -> tuple[Command, dict[str, str]]:
        """Return the command under strace, and strace's variables: the shim must not load into strace."""
        options = (*OPTIONS, "-e", f"trace={','.join(strace.CALLS)}", "-o", str(self.trace))
        return under_strace(self.program, options, command, variables)

    def proof(self, directory: Path, lost: Iterable[str] = ()) -> Proof:
        """Account for every request of the ended command; `directory` holds the entropy files.

        `lost` are the identities of programs that could not be recorded.
        """
        problems = [] if has_ended(self.trace) else [OUTLIVED]
        remove_strace_entropy(directory)
        names, answered, lost_requests = _recorded_requests(directory)
        reliable = _fully_recorded(names, lost)
        try:
            seen_requests = Counter(
                request for request in strace.requests(self.trace, str(self.shim)) if not _is_of_libc(request)
            )
            if not strace.is_whole(self.trace):
                problems = [CUT]
        except OSError as error:
            return Proof(requests=0, accounted=0, problem=f"strace left nothing to read: {error.strerror}")
        finally:
            with suppress(OSError):
                self.trace.unlink()
        if rings := [request for request in seen_requests if request.call == strace.RING]:
            users = {os.path.basename(ring.program) or "a program" for ring in rings}
            problems.append(f"{listed(sorted(users), MAX_USERS)} used io_uring: {UNSEEN_READS}")
            seen_requests = Counter({r: number for r, number in seen_requests.items() if r.call != strace.RING})
        # Expected from the shim, if its process left an entropy file: a shim without a plan passes requests on.
        strangers = Counter(
            {
                request: count
                for request, count in seen_requests.items()
                if request.module != str(self.shim)
                or (request.process not in reliable and request.owner not in reliable)
            }
        )
        shim_requests = seen_requests.total() - strangers.total()
        strangers = _without_answered(strangers, directory)
        unrecorded = strangers.total() + lost_requests.total()
        total = shim_requests + answered + strangers.total()
        lost_lines = (
            f"process {name}: {count} requests that could not be recorded"
            for name, count in sorted(lost_requests.items())
        )
        lines = list(bounded([*_lines(strangers, names), *lost_lines], MAX_LINES))
        return Proof(requests=total, accounted=total - unrecorded, unaccounted=lines, problem="; ".join(problems))


def _fully_recorded(names: Names, lost: Iterable[str]) -> Names:
    """Return the processes none of whose programs was lost: strace tells processes apart, not their programs."""
    lost_names = {identity.rstrip("+") for identity in lost}
    return {
        pid: programs
        for pid, programs in names.items()
        if lost_names.isdisjoint(name.rstrip("+") for name, _ in programs)
    }


def find(directory: Path, shim: Path) -> Tracing:
    """Return a tested strace; raise NoProof if it is missing or may not trace."""
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
    strace_variables = {name: value for name, value in variables.items() if name not in GIVEN} | {
        environments.IDENTITY: ITSELF
    }
    assignments = [word for name in GIVEN if name in variables for word in ("-E", f"{name}={variables[name]}")]
    return Command(
        ("strace", *options, *assignments, "--", *command.arguments), program, command.refusal
    ), strace_variables


def has_ended(trace: Path) -> bool:
    """Return whether strace has written its last line: it ends with the last process that it traces."""
    deadline = time.monotonic() + PATIENCE
    while is_traced := _is_running(trace):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return not is_traced


def refused(program: str, calls: tuple[str, ...] = strace.CALLS) -> str:
    """Return why strace cannot trace here with the required options; empty if it can."""
    strace_variables = {name: value for name, value in os.environ.items() if name not in GIVEN}
    filtered = ("-e", f"trace={','.join(calls)}", "-o", os.devnull)
    options = tuple(option for option in OPTIONS if option != "-DDD")
    try:
        return tried([program, *options, *filtered, "--", "true"], TRIAL_LIMIT, env=strace_variables)[1]
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _is_running(trace: Path) -> bool:
    """Return whether a process has this file on its command line."""
    argument = b"\0" + os.fsencode(trace) + b"\0"
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and argument in Path("/proc", name, "cmdline").read_bytes():
                return True
    return False


def remove_strace_entropy(directory: Path) -> None:
    """Remove what the supervisor recorded of strace itself: it is no part of the run, and a replay has no strace."""
    for file in entropy.processes(directory):
        if file.head.identity.startswith((f"{ITSELF}@", f"{ITSELF}/", f"{ITSELF}+")):
            file.path.unlink()  # a file of its own, not the pool's: strace has no shim


def _recorded_requests(directory: Path) -> tuple[Names, int, Counter[str]]:
    """Return names by process id, the number of requests that the supervisor answered, and lost requests by name."""
    names: Names = {}
    answered, lost = 0, Counter[str]()
    for file in entropy.processes(directory):
        name = file.head.identity.removesuffix("@")
        names.setdefault(file.head.pid, []).append((name, file.head.program))
        if name != file.head.identity:
            answered += sum(chunk.events for chunk in file.chunks()) + file.head.withheld + file.keyed[0]
        if file.head.uncounted:
            lost[name] += file.head.uncounted
    if unanswered := entropy.fresh_requests(directory):
        lost["of any name, while the supervisor did not answer"] = unanswered
    return names, answered, lost


def _without_answered(strangers: Counter[strace.EntropyRequest], directory: Path) -> Counter[strace.EntropyRequest]:
    """Return requests that the supervisor did not answer: strace sees a new thread's first call even if it did."""
    if not strangers:
        return strangers
    pids = {request.process for request in strangers}
    answered = Counter(key for file in entropy.processes(directory) for key in _answered_requests(file, pids))
    keyed_counts = _keyed_request_counts(directory)
    unanswered = Counter[strace.EntropyRequest]()
    for request, count in strangers.items():
        rest = count
        if request.call == "getrandom":
            rest -= _deduct(answered, (request.process, request.given, request.offset % PAGE), rest)
            rest -= _deduct(keyed_counts, request.process, rest)
        if rest:
            unanswered[request] = rest
    return unanswered


def _deduct(counts: Counter[K], key: K, count: int) -> int:
    deducted = min(count, counts[key])
    counts[key] -= deducted
    return deducted


def _keyed_request_counts(directory: Path) -> Counter[int]:
    """Return how many requests of each process the supervisor answered; a keyed run keeps only their number."""
    counts = Counter[int]()
    for file in entropy.processes(directory):
        if file.head.identity.endswith("@"):
            counts[file.head.pid] += file.keyed[0]
    return counts


def _answered_requests(file: entropy.EntropyFile, pids: set[int]) -> Iterator[tuple[int, int, int]]:
    """Yield process, size and offset within its page for each request of these processes that was answered."""
    if file.head.identity.endswith("@") and file.head.pid in pids:
        for record in file.records():
            if isinstance(record, EntropyEvent) and record.source == "kernel":
                yield file.head.pid, record.given, record.offset % PAGE


def _lines(strangers: Counter[strace.EntropyRequest], names: Names) -> Iterator[str]:
    """Yield one line for each request that was not recorded."""
    for request, count in strangers.items():
        times = f", {count} times" if count > 1 else ""
        yield f"{_process_words(request, names)}: {_request_words(request)}{times}"


def _is_of_libc(request: strace.EntropyRequest) -> bool:
    """Return whether glibc made the request for itself: shim and supervisor leave such requests to the kernel."""
    is_libc = os.path.basename(request.module).startswith(("libc.so.", "libc-2."))
    return request.shimmed and is_libc and (request.call, request.flags, request.given) == OF_LIBC


def _process_words(request: strace.EntropyRequest, names: Names) -> str:
    programs_seen = names.get(request.process, [])
    identities = " or ".join(dict.fromkeys(name for name, _ in programs_seen[:3]))
    programs = (
        request.program or " or ".join(dict.fromkeys(program for _, program in programs_seen[:3])) or "unknown program"
    )
    return f"process {identities}{' ' if identities else ''}(pid {request.process}, {programs})"


def _request_words(request: strace.EntropyRequest) -> str:
    source = f" of {request.source}" if request.source else ""
    place = f"{os.path.basename(request.module)}+{request.offset:#x}" if request.module else "the program itself"
    return f"{request.call}{source}, {request.given} bytes, by {place}"


def in_words(proof: Proof) -> str:
    """Return the result of the proof in one line."""
    if proof.problem and not proof.requests:
        return f"there is none: {proof.problem}"
    unrecorded = proof.requests - proof.accounted
    if unrecorded:
        summary = f"{unrecorded} of {proof.requests} requests were not recorded: {'; '.join(proof.unaccounted)}"
    else:
        every = "" if proof.without_requests else "all "
        summary = f"{proof.requests} requests to the kernel, {every}accounted for (glibc's own for its heap left aside)"
    if proof.without_requests:
        summary += f"; not accounted for is what needs no request: {'; '.join(proof.without_requests)}"
    return f"{summary}; {proof.problem}" if proof.problem else summary
