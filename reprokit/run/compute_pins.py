"""Makes a replay on another machine compute as the recording did: numbers of threads and choices of code.

Libraries look at the usable processors and their instruction sets. If these differ from the recording's, variables
tell libraries what to use instead, as far as this processor supports it; the rest is reported. What the recording's
libraries used is in the last lines of its metrics. docs/commands/replay.md shows the list to users.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard

import msgspec

from reprokit.core.printable import printable
from reprokit.run import capabilities, host
from reprokit.run.capabilities import Processor
from reprokit.run.compute_facts import ComputeFacts, read_compute_facts
from reprokit.run_files.rundir import RunDirectory

MAX_COUNT = 4096  # threads or processors; a larger number is damage
LONGEST = 100  # characters of a fact in a message

# Variables that set a number of threads, with library and fact that hold the recorded number.
_COUNTS = (
    ("OMP_NUM_THREADS", "openmp", "threads"),
    ("MKL_NUM_THREADS", "mkl", "threads"),
    ("OPENBLAS_NUM_THREADS", "openblas", "threads"),
    ("NUMEXPR_NUM_THREADS", "numexpr", "threads"),
    ("TF_NUM_INTRAOP_THREADS", "tensorflow", "threads"),
    ("TF_NUM_INTEROP_THREADS", "tensorflow", "interop_threads"),
)
_MCA = re.compile(r"coll_[a-z_]{1,60}")
_CHOICES = ("_algorithm", "_dynamic_rules")  # suffixes of parameters that are 0 unless somebody chose an algorithm


class ComputePins(msgspec.Struct, frozen=True):
    """The settings that make this machine compute like the recording's."""

    variables: dict[str, str] = msgspec.field(default_factory=dict)
    pools: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # sizes of thread pools, which the agent sets as no variable does
    processors: int | None = None  # how many the command may use, if more are usable here than in the recording
    changes: tuple[str, ...] = ()  # in words, including what cannot be made the same


def processor_of(cpu: Any) -> Processor | None:
    """Return the processor described in environment.json; None if its facts are incomplete."""
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
    """Return the settings for a replay on this machine; nearly none if it is the same."""
    environment = recording.environment() or {}
    recorded, current = processor_of(environment.get("cpu")), processor_of(host.cpu_facts())
    facts = read_compute_facts(recording)
    collective_variables = dict(_collective_algorithms(recording, facts))
    if recorded is None or current is None or recorded.computes_like(current):
        return ComputePins(collective_variables, changes=tuple(_collective_changes(collective_variables)))
    # Other variables of a recorded process: the command, or a program in between, sets them itself.
    set_by_command = {text.partition("=")[0] for text in facts.texts("process", "variables")}
    already_set = set_by_command | recording.run.variables.keys()
    changes = list(_collective_changes(collective_variables))
    variables: dict[str, str] = {}
    for name, value, reason in [
        *_thread_counts(recorded, current, facts, environment),
        *_code_choices(recorded, current, facts),
    ]:
        if name not in already_set:
            variables[name] = value
            changes.append(f"pinned: {name}={value}, {reason}")
    processors = recorded.usable if current.usable > recorded.usable else None
    if processors is not None:
        changes.append(f"pinned: {processors} of the {current.usable} usable processors, as recorded")
    if not recorded.chooses_like(current):
        changes += capabilities.not_possible(recorded, current, facts)
    return ComputePins(
        {**variables, **collective_variables},
        dict(_thread_pools(recorded, current, facts)),
        processors,
        tuple(printable(change, 3 * LONGEST) for change in changes),
    )


def _collective_algorithms(recording: RunDirectory, compute_facts: ComputeFacts) -> Iterator[tuple[str, str]]:
    """Yield variables for Open MPI's algorithms, if a file chose them in the recording: here it may choose others."""
    recorded_settings = " ".join([*recording.run.variables, *recording.run.command])
    for line in compute_facts.lines:
        facts = {name: value for name, value in line.facts.items() if _MCA.fullmatch(name) and type(value) is int}
        chosen = [name for name, value in facts.items() if value and name.endswith(_CHOICES)]
        if line.library == "collectives" and chosen and not any(name in recorded_settings for name in chosen):
            yield from ((f"OMPI_MCA_{name}", str(value)) for name, value in facts.items())
            return


def _collective_changes(variables: dict[str, str]) -> Iterator[str]:
    if variables:
        chosen = ", ".join(f"{name}={value}" for name, value in variables.items() if name.endswith(_CHOICES))
        yield f"pinned: {chosen}, as a file had it in the recording"


def _thread_counts(
    recorded: Processor, current: Processor, facts: ComputeFacts, environment: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield variables for numbers of threads, which follow the usable processors."""
    if (
        recorded.count != current.count
        and recorded.count == recorded.usable
        and _python_version(environment) >= (3, 13)
    ):
        yield "PYTHON_CPU_COUNT", str(recorded.count), f"as recorded (this machine has {current.count})"
    if recorded.usable == current.usable:
        return
    reason = f"as recorded (this machine has {current.usable} usable processor{'s' if current.usable > 1 else ''})"
    for name, library, fact in _COUNTS:
        count = facts.number(library, fact)
        if count is None and name == "OMP_NUM_THREADS" and not facts.lines:
            count = recorded.usable  # no process reported: not a Python program, or a killed one
        if _is_count(count):
            yield name, str(count), reason
    if facts.has("mkl") and recorded.usable > current.usable:
        yield "MKL_DYNAMIC", "FALSE", "or MKL would take no more threads than there are processors"


def _thread_pools(recorded: Processor, current: Processor, facts: ComputeFacts) -> Iterator[tuple[str, int]]:
    """Yield pools that never use more threads than there are processors, whatever their variable says."""
    if current.usable < recorded.usable:
        for name, library, fact in (("openblas", "openblas", "threads"), ("torch_interop", "torch", "interop_threads")):
            counts = set(facts.all(library, fact))
            if len(counts) == 1 and _is_count(count := counts.pop()):
                yield name, count


def _python_version(environment: dict[str, Any]) -> tuple[int, ...]:
    """Return the version of the recording's first Python process."""
    python = environment.get("python")
    version = str(python.get("python")) if isinstance(python, dict) else ""
    return tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdecimal())


def _code_choices(recorded: Processor, current: Processor, facts: ComputeFacts) -> Iterator[tuple[str, str, str]]:
    """Yield variables for the choice of code, which follows the processor."""
    if not recorded.chooses_like(current):
        for name, value in capabilities.variables(recorded, current, facts):
            yield name, value, "as recorded (this processor is another one)"


@contextmanager
def on_processors(count: int | None) -> Iterator[None]:
    """Let programs started within use only so many processors; this thread gets its own back afterwards."""
    usable = sorted(os.sched_getaffinity(0))
    if count is None or count >= len(usable):
        yield
        return
    first = os.getpid() % len(usable)  # so that parallel replays do not all use the same ones
    with suppress(OSError):
        os.sched_setaffinity(0, [*usable[first:], *usable[:first]][:count])
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, usable)


def unmet(recording: RunDirectory, replay: RunDirectory) -> Iterator[str]:
    """Yield the compute facts that still differ from the recording in spite of the pins."""
    recorded, current = read_compute_facts(recording), read_compute_facts(replay)
    for library in dict.fromkeys(line.library for line in recorded.lines):
        facts = dict.fromkeys(fact for line in recorded.lines if line.library == library for fact in line.facts)
        for fact in facts if library != "process" else ():
            pair = _all_values(recorded, library, fact), _all_values(current, library, fact)
            if pair[1] and pair[0] != pair[1]:
                yield printable(f"{library} {fact}: {pair[0]} recorded, {pair[1]} in this replay", 3 * LONGEST)


def _all_values(facts: ComputeFacts, library: str, fact: str) -> str:
    """Return the values of a fact in all processes."""
    return ", ".join(sorted({str(value)[:LONGEST] for value in facts.all(library, fact)}))[: 2 * LONGEST]
