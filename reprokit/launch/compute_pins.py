"""Makes a replay on another machine compute as the recording did: counts of threads and choices of code.

Libraries look at the processors that they may use and at what these can do. Where that is not what it was,
variables tell them what to take instead, as far as this processor can do it; the rest is said.
docs/commands/replay.md shows the list to users.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard

import msgspec

from reprokit.launch import capabilities, compute_facts, host
from reprokit.launch.capabilities import Processor
from reprokit.launch.compute_facts import Computed
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


class Pins(msgspec.Struct, frozen=True):
    """What makes this machine look like the recording's."""

    variables: dict[str, str] = msgspec.field(default_factory=dict)
    pools: dict[str, int] = msgspec.field(default_factory=dict)  # sizes that no variable sets: the agent does
    processors: int | None = None  # how many the command may use, where it may use more than it could
    changes: tuple[str, ...] = ()  # in words, with what cannot be made the same


class ProcessorFacts(msgspec.Struct, frozen=True):
    """The processors of a machine, as far as libraries look at them."""

    count: int
    usable: int
    processor: Processor

    def computes_like(self, other: ProcessorFacts) -> bool:
        """Whether libraries see no difference."""
        same_counts = (self.count, self.usable) == (other.count, other.usable)
        return same_counts and self.processor.chooses_like(other.processor)


def machine(cpu: Any) -> ProcessorFacts | None:
    """The machine that the facts of environment.json tell of; None where they tell nothing of use."""
    if not isinstance(cpu, dict):
        return None
    count, usable, flags = cpu.get("count"), cpu.get("usable"), cpu.get("flags")
    if not (_is_count(count) and _is_count(usable) and isinstance(flags, list)):
        return None
    model = str(cpu.get("model", ""))
    return ProcessorFacts(count, usable, Processor(model, frozenset(str(flag) for flag in flags)))


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= MAX_COUNT


def pins(recording: RunDirectory) -> Pins:
    """What a replay here must be told; nothing on the same machine."""
    environment = recording.environment() or {}
    before, now = machine(environment.get("cpu")), machine(host.cpu_facts())
    if before is None or now is None or before.computes_like(now):
        return Pins()
    told = compute_facts.read(recording)
    taken = _taken(told) | recording.run.variables.keys()
    changes: list[str] = []
    variables: dict[str, str] = {}
    for name, value, why in [*_counts(before, now, told, environment), *_choices(before, now, told)]:
        if name not in taken:
            variables[name] = value
            changes.append(f"pinned: {name}={value}, {why}")
    processors = before.usable if now.usable > before.usable else None
    if processors is not None:
        changes.append(f"pinned: {processors} of the {now.usable} usable processors, as recorded")
    if not before.processor.chooses_like(now.processor):
        changes += capabilities.not_possible(before.processor, now.processor, told)
    return Pins(
        variables,
        dict(_pools(before, now, told)),
        processors,
        tuple(printable(change, 3 * LONGEST) for change in changes),
    )


def _taken(told: Computed) -> set[str]:
    """The variables that a process of the recording had: the command, or a program in between, sets them itself."""
    return {text.partition("=")[0] for text in told.texts("process", "variables")}


def _counts(
    before: ProcessorFacts, now: ProcessorFacts, told: Computed, environment: dict[str, Any]
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


def _pools(before: ProcessorFacts, now: ProcessorFacts, told: Computed) -> Iterator[tuple[str, int]]:
    """Pools that take no more threads than there are processors, whatever their variable says."""
    if now.usable < before.usable:
        for name, library, fact in (("openblas", "openblas", "threads"), ("torch_interop", "torch", "interop_threads")):
            counts = set(told.all(library, fact))
            if len(counts) == 1 and _is_count(count := counts.pop()):
                yield name, count


def _python(environment: dict[str, Any]) -> tuple[int, ...]:
    """The version of the first Python of the recording."""
    python = environment.get("python")
    version = str(python.get("python")) if isinstance(python, dict) else ""
    return tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdecimal())


def _choices(before: ProcessorFacts, now: ProcessorFacts, told: Computed) -> Iterator[tuple[str, str, str]]:
    """Variables for the choice of code, which follows the processor."""
    if not before.processor.chooses_like(now.processor):
        for name, value in capabilities.variables(before.processor, now.processor, told):
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
    """What libraries computed with otherwise than in the recording, after all."""
    before, now = compute_facts.read(recording), compute_facts.read(replay)
    for library in dict.fromkeys(line.library for line in before.lines):
        facts = dict.fromkeys(fact for line in before.lines if line.library == library for fact in line.facts)
        for fact in facts if library != "process" else ():
            pair = _distinct(before, library, fact), _distinct(now, library, fact)
            if pair[1] and pair[0] != pair[1]:
                yield printable(f"{library} {fact}: {pair[0]} recorded, {pair[1]} in this replay", 3 * LONGEST)


def _distinct(told: Computed, library: str, fact: str) -> str:
    """The values of a fact over all processes."""
    return ", ".join(sorted({str(value)[:LONGEST] for value in told.all(library, fact)}))[: 2 * LONGEST]
