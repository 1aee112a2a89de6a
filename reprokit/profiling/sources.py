"""Makes findings about sources of randomness: entropy, clocks and process ids as seeds, devices."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from reprokit.core.errors import RunError
from reprokit.entropy.profile import is_python
from reprokit.entropy.request_counts import Requester, RunRequests, who_asked
from reprokit.model.run import RunFile, SystemCallsFile
from reprokit.profiling.groups import Occurrences
from reprokit.profiling.lines import MAX_TEXT
from reprokit.run_files import findings
from reprokit.run_files.findings import ORDER, SOURCE, SYSTEM_CALL, CodePlace, Cure, Finding
from reprokit.run_files.rundir import ENTROPY, SYSTEM_CALLS, RunDirectory

MAX_LINES = 500_000  # lines of metrics.jsonl that are read
MAX_CALLS = 16 << 20  # bytes that are read of system-calls.json
MAX_SEEDS = 10_000  # distinct seeding calls
SLACK = 2.0  # seconds of tolerance between a seed and the times of the run
SCALES = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
NARROW = 1 << 32  # seeds are often cut to 32 bits
COVERED_RANK, SET_RANK, UNCOVERED_RANK, INSTRUCTIONS_RANK = 1.0, 5.0, 70.0, 30.0

CLOCK_SEED = "python.clock-seed"
RECORDED = "random: recorded, and given again by a replay"
INSTRUCTIONS_WHY = "these libraries hold the instruction; if it is executed, what it gives is not recorded"
HIDE = Cure(None, "record --hide-rdrand", "programs that cannot do without it fail")
CLOCKS = {  # by whether the run has a calendar: why what reads the clock unrecorded may vary, and what cures it
    True: ("other threads' reads of the clock are recorded with --clock only", Cure(None, "record --clock")),
    False: ("without a calendar a replay reads another time", Cure(None, "record without --no-calendar")),
}
CALENDAR = "the time of day"  # source of what programs read of the recorded one
CALENDAR_WHY = "differs from run to run: recorded, and a replay is told the recorded time"
THREADS_WHY = "which of its threads is first depends on timing, and what each of them does was not watched"
NO_ENTROPY = (
    "instructions",
    "clock",
    "calendar",
    "memory",
)  # sources that are no missing entropy
UNRECORDED = "random, and not recorded: a replay cannot give it again"
GIVEN_AGAIN = "differs from run to run; a replay gives the recorded value again"
RANDOM = ("getrandom", "/dev/urandom", "/dev/random", "/dev/hwrng", "/proc/sys/kernel/random/")
OF_PROCESSORS = ("/proc/cpuinfo", "/sys/devices/system/", "/sys/fs/cgroup", "/dev/cpu/")
PROCESSORS_WHY = "tells how many processors there are and what they can: another machine may compute otherwise"
DEVICE_WHY = "an accelerator was opened: what it computes may depend on its kind and driver"


@dataclass
class ProfiledRunFacts:
    """The facts of metrics.jsonl that findings need: versions, process ids, and seeds."""

    versions: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)  # process ids by identity
    seeds: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)  # call, argument, place, identity
    notes: list[str] = field(default_factory=list)


def read_metrics(run: RunDirectory) -> ProfiledRunFacts:
    """Read metrics.jsonl; if it is damaged, a note is added and the lines before are used."""
    run_facts = ProfiledRunFacts()
    try:
        for number, line in enumerate(run.metrics()):
            if number >= MAX_LINES:
                run_facts.notes.append(f"seeds behind the first {MAX_LINES} lines of the metrics were not looked at")
                break
            _add_line(run_facts, line)
    except RunError as error:
        run_facts.notes.append(str(error))
    return run_facts


def _add_line(run_facts: ProfiledRunFacts, line: dict[str, Any]) -> None:
    kind, identity = line.get("k"), str(line.get("p"))
    if kind == "framework":
        run_facts.versions.setdefault(str(line.get("name")), str(line.get("version")))
    elif kind == "agent" and type(line.get("pid")) is int:
        run_facts.pids.setdefault(identity, line["pid"])
    elif kind == "seed":
        key = (str(line.get("call")), str(line.get("argument")), str(line.get("where")), identity)
        if key in run_facts.seeds or len(run_facts.seeds) < MAX_SEEDS:
            run_facts.seeds[key] += 1


def of_seeds(run: RunFile, run_facts: ProfiledRunFacts) -> Iterator[Finding]:
    """Yield the seeds that may come from the clock or a process id."""
    sources: dict[str, Occurrences] = defaultdict(Occurrences)
    for (call, argument, where, identity), number in run_facts.seeds.items():
        origin = _origin(argument, run, run_facts.pids.get(identity))
        if origin:
            sources[f"{origin} as a seed of {call}"].add(identity, number, [_place(where)])
    cure = [Cure(None, "give a fixed seed", "")]
    for subject, seen in sources.items():
        verdict, rank = findings.COVERED, COVERED_RANK + 2
        yield seen.finding(SOURCE, subject, verdict, GIVEN_AGAIN, rank, fact=CLOCK_SEED, cures=cure)


def _place(where: str) -> CodePlace:
    file, _, line = where.rpartition(":")
    return CodePlace(file[:MAX_TEXT], int(line) if line.isascii() and line.isdecimal() and len(line) < 10 else 0)


def _origin(argument: str, run: RunFile, pid: int | None) -> str:
    """Return the likely origin of a seed: "the clock in seconds", "the process id", or ""."""
    text = argument.strip()
    if not (text.removeprefix("-").replace(".", "", 1).isdecimal() and text.isascii() and len(text) < 32):
        return ""
    value = float(text) if "." in text else int(text)
    if pid is not None and value == pid:
        return "the process id"
    began, ended = _times(run)
    if not began:
        return ""
    for unit, scale in SCALES.items():
        first, last = int((began - SLACK) * scale), int((ended + SLACK) * scale)
        if first <= value <= last or (last - first < NARROW >> 4 and _is_narrowed(value, first, last)):
            return f"the clock in {unit}"
    return ""


def _is_narrowed(value: float, first: int, last: int) -> bool:
    """Return whether a value equals a number of this range modulo 2**32."""
    if value != int(value) or not 0 <= value < NARROW or last < NARROW:
        return False
    return (int(value) - first) % NARROW <= last - first


def _times(run: RunFile) -> tuple[float, float]:
    """Return when the run began and ended, in seconds since the epoch; zeros if that is not known."""
    try:
        began = datetime.strptime(run.started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0.0, 0.0
    return began, began + min(max(run.duration or 0.0, 0.0), 1e8) + 1


def _asker(name: str) -> list[CodePlace]:
    """Return the requesting library or program as a place."""
    return [CodePlace(name[:MAX_TEXT])] if name else []


def read_requests(run: RunDirectory, notes: list[str]) -> RunRequests | None:
    """Return who asked for entropy; None, and a note, if that cannot be read."""
    try:
        return who_asked(run.path / ENTROPY)
    except RunError as error:
        notes.append(str(error))
        return None


def asking_threads(rows: Iterable[Requester]) -> dict[str, int]:
    """Return in how many threads of one process a library asked for entropy, by its file name; the largest number.

    Requests of Python's own library are left out: its threads are watched.
    """
    threads: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for asker in rows:
        library = os.path.basename(asker.module or asker.program)
        if asker.thread and not library.startswith("libpython") and not is_python(library):
            threads[library, asker.process, asker.incarnation].add(asker.thread)
    most: dict[str, int] = {}
    for (library, *_), names in threads.items():
        most[library] = max(len(names), most.get(library, 0))
    return most


def of_processes(run: RunDirectory, helpers: set[int], notes: list[str]) -> Iterator[Finding]:
    """Yield findings on requests to the kernel, except those of processes that agents started to measure."""
    asking = read_requests(run, notes)
    names = set() if asking is None else _with_descendants(asking, helpers)
    if asking is not None:
        yield from _of_entropy(run, asking, names)
        helpers = helpers | {process.pid for process in asking.processes if process.identity in names}
    yield from _of_system_calls(run, helpers, notes)


def _with_descendants(asking: RunRequests, helpers: set[int]) -> set[str]:
    """Return the identities of these processes and their descendants."""
    names = {process.identity for process in asking.processes if process.pid in helpers}
    below = tuple(f"{name}/" for name in names)
    return names | {process.identity for process in asking.processes if process.identity.startswith(below)}


def _of_entropy(run: RunDirectory, asking: RunRequests, helpers: set[str]) -> Iterator[Finding]:
    """Yield the sources of entropy in the shim's log, and unrecorded ones."""
    sources: dict[str, Occurrences] = defaultdict(Occurrences)
    for asker, asked in asking.rows.items():
        if asker.process not in helpers:
            process = (asker.process, asker.incarnation)
            sources[asker.source].add(process, asked.requests, _asker(asker.module or asker.program))
    for source, seen in sources.items():
        yield seen.finding(SOURCE, source, findings.COVERED, RECORDED, COVERED_RANK)
    yield from _of_threads(asking, helpers)
    yield from _of_calendar(asking, helpers)
    lost = Occurrences()
    for asked_by in asking.processes:
        if asked_by.unrecorded and asked_by.identity not in helpers:
            lost.add(asked_by.identity, asked_by.unrecorded)
    uncovered = dict.fromkeys(run.run.uncovered)
    missing = [("requests that were not recorded", lost)] if lost.calls else []
    missing += [(gap.text, Occurrences()) for gap in uncovered if gap.source not in NO_ENTROPY]
    for subject, seen in missing:
        yield seen.finding(SOURCE, subject, findings.SUSPECT, UNRECORDED, UNCOVERED_RANK)
    for gap in uncovered:
        if gap.source == "clock":
            why, cure = CLOCKS[run.run.calendar]
            yield Occurrences().finding(SOURCE, gap.text, findings.SUSPECT, why, UNCOVERED_RANK, cures=[cure])
    instructions = [gap.module or gap.text for gap in uncovered if gap.source == "instructions"]
    if instructions:
        yield _of_instructions(instructions)


def _of_threads(asking: RunRequests, helpers: set[str]) -> Iterator[Finding]:
    """Yield the libraries whose threads asked for entropy: they work beside each other, which nothing here watches."""
    for library, number in asking_threads(row for row in asking.rows if row.process not in helpers).items():
        if number > 1:
            subject, seen = f"{number} threads of {library}", Occurrences()
            yield seen.finding(ORDER, subject, findings.AS_SET, THREADS_WHY, SET_RANK, shows=["timing"])


def _of_calendar(asking: RunRequests, helpers: set[str]) -> Iterator[Finding]:
    """Yield the recorded reads of the clock of other programs than Python, whose calls of functions are observed."""
    seen = Occurrences()
    for process in asking.processes:
        if process.clock_reads and process.identity not in helpers and not is_python(process.program):
            seen.add((process.identity, process.incarnation), process.clock_reads, _asker(process.program))
    if seen.calls:
        yield seen.finding(SOURCE, CALENDAR, findings.COVERED, CALENDAR_WHY, COVERED_RANK)


def _of_instructions(files: list[str]) -> Finding:
    """Return one finding for random instructions in libraries; whether they are executed is unknown."""
    seen = Occurrences()
    for file in files:
        seen.places[CodePlace(file[:MAX_TEXT])] += 1
    names = ", ".join(file.rpartition("/")[2] for file in files[:3]) + (" and more" if len(files) > 3 else "")
    verdict = findings.SUSPECT
    return seen.finding(SOURCE, f"RDRAND in {names}", verdict, INSTRUCTIONS_WHY, INSTRUCTIONS_RANK, cures=[HIDE])


def _of_system_calls(run: RunDirectory, helpers: set[int], notes: list[str]) -> Iterator[Finding]:
    """Yield findings on system calls that strace saw; entropy is also in the shim's log."""
    listed_calls = _system_calls(run, notes)
    sources: dict[tuple[str, str], Occurrences] = defaultdict(Occurrences)
    for call in listed_calls.calls if listed_calls is not None else ():
        if call.pid not in helpers:
            sources[call.call, call.source].add(call.pid, call.calls, _asker(call.program))
    for (call_name, source), seen in sources.items():
        yield _system_call(call_name, source, seen)


def _system_calls(run: RunDirectory, notes: list[str]) -> SystemCallsFile | None:
    profiling = run.run.profiling
    if profiling is not None and not profiling.system_calls.is_on:
        notes.append(
            f"system calls were not watched ({profiling.system_calls.why}): sources are from the shim's own log"
        )
    if not run.has(SYSTEM_CALLS):
        return None
    try:
        listed_calls = run.decode(SYSTEM_CALLS, SystemCallsFile, MAX_CALLS)
    except RunError as error:
        notes.append(str(error))
        return None
    if listed_calls.left_out:
        notes.append(f"{listed_calls.left_out} system calls of further callers are left out")
    if listed_calls.problem:
        notes.append(f"system calls: {listed_calls.problem}")
    return listed_calls


def _system_call(call: str, source: str, seen: Occurrences) -> Finding:
    if source.startswith(RANDOM):
        why, verdict, rank = RECORDED, findings.COVERED, COVERED_RANK
    elif source.startswith(OF_PROCESSORS):
        why, verdict, rank = PROCESSORS_WHY, findings.AS_SET, SET_RANK
    else:
        why, verdict, rank = DEVICE_WHY, findings.AS_SET, SET_RANK
    subject = call if source == call else f"{call} {source}"
    return seen.finding(SYSTEM_CALL, subject, verdict, why, rank, shows=[])
