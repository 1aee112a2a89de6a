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

from reprokit.core.errors import RunError
from reprokit.core.printable import printable
from reprokit.run import host
from reprokit.run_files import rundir
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
MAX_READ = 16 << 20  # bytes read from the end of metrics.jsonl: processes write these lines as they end
MAX_TEXT = 200
_WANTED = b'{"k":"compute"'
Fact = bool | int | str | list[str] | None
_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_VNNI = _AVX512 | {"avx512_vnni"}
_BF16 = _VNNI | {"avx512_bf16"}
_FP16 = _BF16 | {"avx512_fp16", "avx_vnni"}
_AMX = _FP16 | {"amx_tile", "amx_int8", "amx_bf16"}
Levels = tuple[tuple[str, frozenset[str]], ...]
# Each library's names for its levels, the lowest first, with the processor flags that they need.
_GENERAL: Levels = (("SSE2", frozenset()), ("AVX", frozenset({"avx"})), ("AVX2", _AVX2), ("AVX512", _AVX512))
_ATEN: Levels = (("DEFAULT", frozenset()), ("AVX2", _AVX2), ("AVX512", _AVX512))
_MKL: Levels = (("SSE4_2", frozenset({"sse4_2"})), *_GENERAL[1:])
_ONEDNN: Levels = (
    ("SSE41", frozenset({"sse4_1"})),
    ("AVX", frozenset({"avx"})),
    ("AVX2", _AVX2),
    ("AVX512_CORE", _AVX512),
    ("AVX512_CORE_VNNI", _VNNI),
    ("AVX512_CORE_BF16", _BF16),
    ("AVX512_CORE_FP16", _FP16),
    ("AVX512_CORE_AMX", _AMX),
)
_CORES = {
    "Prescott": frozenset({"pni"}),
    "Core2": frozenset({"ssse3"}),
    "Penryn": frozenset({"sse4_1"}),
    "Dunnington": frozenset({"sse4_1"}),
    "Nehalem": frozenset({"sse4_2"}),
    "Barcelona": frozenset({"sse4a", "3dnowprefetch"}),
    "Sandybridge": frozenset({"avx"}),
    "Haswell": _AVX2,
    "Zen": _AVX2,
    "SkylakeX": _AVX512,
    "Cooperlake": _BF16,
    "Sapphirerapids": _AMX,
}
_NUMPY = {
    "SSE3": frozenset({"pni"}),
    "SSSE3": frozenset({"ssse3"}),
    "SSE41": frozenset({"sse4_1"}),
    "POPCNT": frozenset({"popcnt"}),
    "SSE42": frozenset({"sse4_2"}),
    "X86_V2": frozenset({"sse4_2", "popcnt"}),
    "AVX": frozenset({"avx"}),
    "F16C": frozenset({"f16c"}),
    "XOP": frozenset({"xop"}),
    "FMA4": frozenset({"fma4"}),
    "FMA3": frozenset({"fma"}),
    "AVX2": frozenset({"avx2"}),
    "X86_V3": _AVX2,
    "AVX512F": frozenset({"avx512f"}),
    "AVX512CD": frozenset({"avx512cd"}),
    "AVX512_KNL": frozenset({"avx512er", "avx512pf"}),
    "AVX512_KNM": frozenset({"avx512_4fmaps"}),
    "AVX512_SKX": _AVX512,
    "X86_V4": _AVX512,
    "AVX512_CLX": _VNNI,
    "AVX512_CNL": _AVX512 | {"avx512ifma", "avx512vbmi"},
    "AVX512_ICL": _AVX512 | {"avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq"},
    "AVX512_SPR": _AVX512 | {"avx512_fp16"},
}
# Flags by which the C library's math functions choose their code, and its names for them, since and before 2.33.
_LIBC = {"fma": ("FMA", "FMA_Usable"), "fma4": ("FMA4", "FMA4_Usable"), "avx2": ("AVX2", "AVX2_Usable")}
# Prefixes of flags that change results, on x86-64 and aarch64.
_ARITHMETIC = ("amx", "avx", "f16c", "fma", "xop", "asimd", "bf16", "fphp", "i8mm", "sme", "sve")


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
        changes += not_possible(recorded, current, facts)
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
        for name, value in variables(recorded, current, facts):
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


class _ComputeLine(msgspec.Struct):
    """A line of kind compute in metrics.jsonl; other fields are ignored."""

    p: str
    name: str
    library: str
    facts: dict[str, Fact]


class ComputeFacts(msgspec.Struct, frozen=True):
    """The compute facts of all processes, those nearest to the command first."""

    lines: list[_ComputeLine] = msgspec.field(default_factory=list)

    def all(self, library: str, fact: str) -> list[Any]:
        """Return a library's fact in each process that reported it."""
        return [line.facts[fact] for line in self.lines if line.library == library and line.facts.get(fact) is not None]

    def number(self, library: str, fact: str) -> int | None:
        """Return a number from the first process that reported it; the highest if it loaded several copies."""
        facts = [(line.p, line.facts.get(fact)) for line in self.lines if line.library == library]
        counts = [(process, value) for process, value in facts if type(value) is int]
        return max((value for process, value in counts if process == counts[0][0]), default=None)

    def text(self, library: str, fact: str) -> str:
        """Return a text from the first process that reported it; empty if none did."""
        return next((value for value in self.all(library, fact) if isinstance(value, str)), "")[:MAX_TEXT]

    def texts(self, library: str, fact: str) -> list[str]:
        """Return the texts that any process reported, sorted."""
        lists = [value for value in self.all(library, fact) if isinstance(value, list)]
        return sorted({text[:MAX_TEXT] for texts in lists for text in texts})

    def has(self, library: str) -> bool:
        """Return whether any process used the library."""
        return any(line.library == library for line in self.lines)


def read_compute_facts(run: RunDirectory) -> ComputeFacts:
    """Return a run's compute facts; none if its metrics are missing or damaged, which verify reports."""
    try:
        descriptor = run.open(rundir.METRICS)
    except RunError:
        return ComputeFacts()
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_READ))
        lines = file.read(MAX_READ).split(b"\n")
    compute_lines = [line for raw in lines if raw.startswith(_WANTED) and (line := _decoded_line(raw)) is not None]
    return ComputeFacts(sorted(compute_lines, key=lambda line: (len(line.p), line.p)))


def _decoded_line(raw: bytes) -> _ComputeLine | None:
    try:
        return msgspec.json.decode(raw, type=_ComputeLine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Processor(msgspec.Struct, frozen=True):
    """The facts by which libraries choose their code and their number of threads."""

    model: str
    flags: frozenset[str]
    count: int = 0
    usable: int = 0  # by this process

    def level(self, levels: Levels) -> str:
        """Return the highest level whose flags it has; empty if it has not even those of the first."""
        return next((name for name, required in reversed(levels) if required <= self.flags), "")

    @property
    def arithmetic(self) -> frozenset[str]:
        """Return the flags that change results."""
        return frozenset(flag for flag in self.flags if flag.startswith(_ARITHMETIC))

    def chooses_like(self, other: Processor) -> bool:
        """Return whether libraries choose the same code on both, as far as is known."""
        unknown = not self.flags or not other.flags
        return unknown or (self.model == other.model and self.arithmetic == other.arithmetic)

    def computes_like(self, other: Processor) -> bool:
        """Return whether both look the same to libraries, in number and kind."""
        return (self.count, self.usable) == (other.count, other.usable) and self.chooses_like(other)

    @property
    def maker(self) -> str:
        """Return the maker, as MKL distinguishes them; empty for others."""
        return next((name for name in ("Intel", "AMD") if name in self.model), "")


def variables(recorded: Processor, current: Processor, facts: ComputeFacts) -> Iterator[tuple[str, str]]:
    """Yield variables that make libraries on this processor choose the code of the recorded one."""
    if recorded.arithmetic != current.arithmetic:
        yield from _level_variables(recorded, current, facts)
        unused = [name for name in facts.texts("numpy", "unused") if _NUMPY.get(name, _IMPOSSIBLE) <= current.flags]
        if unused:
            yield "NPY_DISABLE_CPU_FEATURES", " ".join(unused)
        hidden = [name for flag, names in _LIBC.items() if flag in current.flags - recorded.flags for name in names]
        if hidden:
            yield "GLIBC_TUNABLES", "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in hidden)
    core = facts.text("openblas", "core")
    if _CORES.get(core, _IMPOSSIBLE) <= current.flags:
        yield "OPENBLAS_CORETYPE", core


_IMPOSSIBLE = frozenset({"(no processor has this)"})


def _level_variables(recorded: Processor, current: Processor, facts: ComputeFacts) -> Iterator[tuple[str, str]]:
    """Yield variables with the recorded level of each library that would choose a higher one here."""
    chosen = facts.text("torch", "capability")
    if chosen in dict(_ATEN) and _exceeds(_ATEN, chosen, current):
        yield "ATEN_CPU_CAPABILITY", chosen.lower()
    has_onednn = any(facts.has(library) for library in ("torch", "tensorflow", "onednn"))
    for variable, is_used, levels in (
        ("ONEDNN_MAX_CPU_ISA", has_onednn, _ONEDNN),
        ("MKL_ENABLE_INSTRUCTIONS", facts.has("mkl"), _MKL),
    ):
        level = recorded.level(levels)
        if is_used and level and _exceeds(levels, level, current):
            yield variable, level


def _exceeds(levels: Levels, chosen: str, current: Processor) -> bool:
    """Return whether this processor has a higher level than the chosen one."""
    names = [name for name, _ in levels]
    current_level = current.level(levels)
    return bool(current_level) and names.index(current_level) > names.index(chosen)


def not_possible(recorded: Processor, current: Processor, facts: ComputeFacts) -> Iterator[str]:
    """Yield what this processor cannot compute as the recorded one did."""
    missing_flags = sorted(recorded.arithmetic - current.arithmetic)
    levels = recorded.level(_GENERAL), current.level(_GENERAL)
    if missing_flags and levels[0] != levels[1]:
        yield f"recorded with {levels[0]}, this processor has {levels[1]}: results will differ"
    elif missing_flags:
        yield f"recorded with {', '.join(missing_flags)}, which this processor lacks: results can differ"
    core = facts.text("openblas", "core")
    if core and not _CORES.get(core, _IMPOSSIBLE) <= current.flags:
        yield f"OpenBLAS computed by its code for {core}, which this processor cannot be told to take"
    if facts.has("mkl") and recorded.maker != current.maker:
        yield f"MKL chooses its code by the processor's maker too: {recorded.maker or 'unknown'} recorded," + (
            f" {current.maker or 'unknown'} now: results can differ"
        )
