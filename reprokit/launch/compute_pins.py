"""Makes a replay on another machine compute as the recording did: counts of threads and choices of code.

Libraries look at the processors that they may use and at what these can do. Where that is not what it was,
variables tell them what to take instead, as far as this processor can do it; the rest is said. What they computed with
stands in the last lines of a run's metrics. docs/commands/replay.md shows the list to users.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard

import msgspec

from reprokit import rundir
from reprokit.errors import RunError
from reprokit.launch import capabilities, host
from reprokit.launch.capabilities import Processor
from reprokit.printable import printable
from reprokit.rundir import RunDirectory

MAX_COUNT = 4096  # threads or processors; more is no count but damage
LONGEST = 100  # characters of a fact that is shown

# The variables of counts, and where the recording says what the count was.
_COUNTS = (
    ("OMP_NUM_THREADS", "openmp", "threads"),
    ("MKL_NUM_THREADS", "mkl", "threads"),
    ("OPENBLAS_NUM_THREADS", "openblas", "threads"),
    ("NUMEXPR_NUM_THREADS", "numexpr", "threads"),
    ("TF_NUM_INTRAOP_THREADS", "tensorflow", "threads"),
    ("TF_NUM_INTEROP_THREADS", "tensorflow", "interop_threads"),
)
_MCA = re.compile(r"coll_[a-z_]{1,60}")
_CHOICES = ("_algorithm", "_dynamic_rules")  # ends of names of what is 0 unless somebody chose
MAX_READ = 16 << 20  # bytes from the end of metrics.jsonl: processes tell it as they end
MAX_TEXT = 200
_WANTED = b'{"k":"compute"'

Fact = bool | int | str | list[str] | None


class _ComputeLine(msgspec.Struct):
    """A line of kind compute, as far as it matters here."""

    p: str
    name: str
    library: str
    facts: dict[str, Fact]


class ComputeFacts(msgspec.Struct, frozen=True):
    """What every process told, those nearest to the command first."""

    lines: list[_ComputeLine] = msgspec.field(default_factory=list)

    def all(self, library: str, fact: str) -> list[Any]:
        """Return what the processes told of a library."""
        return [line.facts[fact] for line in self.lines if line.library == library and line.facts.get(fact) is not None]

    def number(self, library: str, fact: str) -> int | None:
        """Return a count, of the first process that told it; the highest where it has several copies of the library."""
        found = [(line.p, line.facts.get(fact)) for line in self.lines if line.library == library]
        counts = [(process, value) for process, value in found if type(value) is int]
        return max((value for process, value in counts if process == counts[0][0]), default=None)

    def text(self, library: str, fact: str) -> str:
        """Return a choice, of the first process that told it."""
        return next((value for value in self.all(library, fact) if isinstance(value, str)), "")[:MAX_TEXT]

    def texts(self, library: str, fact: str) -> list[str]:
        """Everything that any process told."""
        lists = [value for value in self.all(library, fact) if isinstance(value, list)]
        return sorted({text[:MAX_TEXT] for texts in lists for text in texts})

    def has(self, library: str) -> bool:
        """Return whether any process used it."""
        return any(line.library == library for line in self.lines)


def computed(run: RunDirectory) -> ComputeFacts:
    """Return what a run told; nothing where it has no metrics or they make no sense: verify says so."""
    try:
        descriptor = run.open(rundir.METRICS)
    except RunError:
        return ComputeFacts()
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_READ))
        lines = file.read(MAX_READ).split(b"\n")
    found = [line for raw in lines if raw.startswith(_WANTED) and (line := _decoded(raw)) is not None]
    return ComputeFacts(sorted(found, key=lambda line: (len(line.p), line.p)))


def _decoded(raw: bytes) -> _ComputeLine | None:
    try:
        return msgspec.json.decode(raw, type=_ComputeLine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class ComputePins(msgspec.Struct, frozen=True):
    """What makes this machine look like the recording's."""

    variables: dict[str, str] = msgspec.field(default_factory=dict)
    pools: dict[str, int] = msgspec.field(default_factory=dict)  # sizes that no variable sets: the agent does
    processors: int | None = None  # how many the command may use, where it may use more than it could
    changes: tuple[str, ...] = ()  # in words, with what cannot be made the same


def machine(cpu: Any) -> Processor | None:
    """Return the machine that the facts of environment.json tell of; None where they tell nothing of use."""
    if not isinstance(cpu, dict):
        return None
    count, usable, flags = cpu.get("count"), cpu.get("usable"), cpu.get("flags")
    if not (_is_count(count) and _is_count(usable) and isinstance(flags, list)):
        return None
    model = str(cpu.get("model", ""))
    return Processor(model, frozenset(str(flag) for flag in flags), count, usable)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= MAX_COUNT


def pins(recording: RunDirectory) -> ComputePins:
    """Return what a replay here must be told; nothing on the same machine."""
    environment = recording.environment() or {}
    before, now = machine(environment.get("cpu")), machine(host.cpu_facts())
    told = computed(recording)
    of_ranks = dict(_collectives(recording, told))
    if before is None or now is None or before.computes_like(now):
        return ComputePins(of_ranks, changes=tuple(_pinned(of_ranks)))
    # What a process of the recording had beside: the command, or a program in between, sets that itself.
    own = {text.partition("=")[0] for text in told.texts("process", "variables")}
    taken = own | recording.run.variables.keys()
    changes = list(_pinned(of_ranks))
    variables: dict[str, str] = {}
    for name, value, why in [*_counts(before, now, told, environment), *_choices(before, now, told)]:
        if name not in taken:
            variables[name] = value
            changes.append(f"pinned: {name}={value}, {why}")
    processors = before.usable if now.usable > before.usable else None
    if processors is not None:
        changes.append(f"pinned: {processors} of the {now.usable} usable processors, as recorded")
    if not before.chooses_like(now):
        changes += capabilities.not_possible(before, now, told)
    return ComputePins(
        {**variables, **of_ranks},
        dict(_pools(before, now, told)),
        processors,
        tuple(printable(change, 3 * LONGEST) for change in changes),
    )


def _collectives(recording: RunDirectory, told: ComputeFacts) -> Iterator[tuple[str, str]]:
    """Yield variables for Open MPI's algorithms, where a file chose them in the recording: it may say others here."""
    given = " ".join([*recording.run.variables, *recording.run.command])
    for line in told.lines:
        facts = {name: value for name, value in line.facts.items() if _MCA.fullmatch(name) and type(value) is int}
        chosen = [name for name, value in facts.items() if value and name.endswith(_CHOICES)]
        if line.library == "collectives" and chosen and not any(name in given for name in chosen):
            yield from ((f"OMPI_MCA_{name}", str(value)) for name, value in facts.items())
            return


def _pinned(of_ranks: dict[str, str]) -> Iterator[str]:
    if of_ranks:
        chosen = ", ".join(f"{name}={value}" for name, value in of_ranks.items() if name.endswith(_CHOICES))
        yield f"pinned: {chosen}, as a file had it in the recording"


def _counts(
    before: Processor, now: Processor, told: ComputeFacts, environment: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Variables for the counts of threads, which follow the usable processors."""
    if before.count != now.count and before.count == before.usable and _python(environment) >= (3, 13):
        yield "PYTHON_CPU_COUNT", str(before.count), f"as recorded (this machine has {now.count})"
    if before.usable == now.usable:
        return
    why = f"as recorded (this machine has {now.usable} usable processor{'s' if now.usable > 1 else ''})"
    for name, library, fact in _COUNTS:
        count = told.number(library, fact)
        if count is None and name == "OMP_NUM_THREADS" and not told.lines:
            count = before.usable  # nobody told: a program that is not Python, or one that was killed
        if _is_count(count):
            yield name, str(count), why
    if told.has("mkl") and before.usable > now.usable:
        yield "MKL_DYNAMIC", "FALSE", "or MKL would take no more threads than there are processors"


def _pools(before: Processor, now: Processor, told: ComputeFacts) -> Iterator[tuple[str, int]]:
    """Pools that take no more threads than there are processors, whatever their variable says."""
    if now.usable < before.usable:
        for name, library, fact in (("openblas", "openblas", "threads"), ("torch_interop", "torch", "interop_threads")):
            counts = set(told.all(library, fact))
            if len(counts) == 1 and _is_count(count := counts.pop()):
                yield name, count


def _python(environment: dict[str, Any]) -> tuple[int, ...]:
    """Return the version of the first Python of the recording."""
    python = environment.get("python")
    version = str(python.get("python")) if isinstance(python, dict) else ""
    return tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdecimal())


def _choices(before: Processor, now: Processor, told: ComputeFacts) -> Iterator[tuple[str, str, str]]:
    """Variables for the choice of code, which follows the processor."""
    if not before.chooses_like(now):
        for name, value in capabilities.variables(before, now, told):
            yield name, value, "as recorded (this processor is another one)"


@contextmanager
def on_processors(count: int | None) -> Iterator[None]:
    """What is started inside may use only so many processors; this thread of reprokit gets its own back."""
    usable = sorted(os.sched_getaffinity(0))
    if count is None or count >= len(usable):
        yield
        return
    first = os.getpid() % len(usable)  # so that replays side by side do not all take the same ones
    with suppress(OSError):
        os.sched_setaffinity(0, [*usable[first:], *usable[:first]][:count])
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, usable)


def unmet(recording: RunDirectory, replay: RunDirectory) -> Iterator[str]:
    """Yield what libraries computed with otherwise than in the recording, after all."""
    before, now = computed(recording), computed(replay)
    for library in dict.fromkeys(line.library for line in before.lines):
        facts = dict.fromkeys(fact for line in before.lines if line.library == library for fact in line.facts)
        for fact in facts if library != "process" else ():
            pair = _distinct(before, library, fact), _distinct(now, library, fact)
            if pair[1] and pair[0] != pair[1]:
                yield printable(f"{library} {fact}: {pair[0]} recorded, {pair[1]} in this replay", 3 * LONGEST)


def _distinct(told: ComputeFacts, library: str, fact: str) -> str:
    """Return the values of a fact over all processes."""
    return ", ".join(sorted({str(value)[:LONGEST] for value in told.all(library, fact)}))[: 2 * LONGEST]
