"""Makes libraries use the code that they used on another processor, if this one can execute it.

Instruction sets are named as Linux does (flags in /proc/cpuinfo, x86-64).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from reprokit.run.compute_facts import ComputeFacts

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
