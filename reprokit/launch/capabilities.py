"""Tells libraries to take the code that they took on another processor, where this one can run it.

The processor's instruction sets are known by Linux's names for them (flags of /proc/cpuinfo, x86-64).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from reprokit.launch.compute_pins import ComputeFacts


_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_VNNI = _AVX512 | {"avx512_vnni"}
_BF16 = _VNNI | {"avx512_bf16"}
_FP16 = _BF16 | {"avx512_fp16", "avx_vnni"}
_AMX = _FP16 | {"amx_tile", "amx_int8", "amx_bf16"}

Levels = tuple[tuple[str, frozenset[str]], ...]

# What each library calls its levels, the lowest first, and the flags that a processor needs for them.
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
# What the C library's mathematical functions choose by, and what it calls that, before and since its version 2.33.
_LIBC = {"fma": ("FMA", "FMA_Usable"), "fma4": ("FMA4", "FMA4_Usable"), "avx2": ("AVX2", "AVX2_Usable")}

# How names of flags begin that change results, on x86-64 and on aarch64.
_ARITHMETIC = ("amx", "avx", "f16c", "fma", "xop", "asimd", "bf16", "fphp", "i8mm", "sme", "sve")


class Processor(msgspec.Struct, frozen=True):
    """What libraries look at when they choose their code and their number of threads."""

    model: str
    flags: frozenset[str]
    count: int = 0
    usable: int = 0  # by this process

    def level(self, levels: Levels) -> str:
        """Return the highest level that it has the flags for; empty where it has not even the first."""
        return next((name for name, needed in reversed(levels) if needed <= self.flags), "")

    @property
    def arithmetic(self) -> frozenset[str]:
        """The flags that change results."""
        return frozenset(flag for flag in self.flags if flag.startswith(_ARITHMETIC))

    def chooses_like(self, other: Processor) -> bool:
        """Return whether libraries choose the same code on both, as far as anybody can tell."""
        unknown = not self.flags or not other.flags
        return unknown or (self.model == other.model and self.arithmetic == other.arithmetic)

    def computes_like(self, other: Processor) -> bool:
        """Return whether libraries see no difference, in number or kind."""
        return (self.count, self.usable) == (other.count, other.usable) and self.chooses_like(other)

    @property
    def maker(self) -> str:
        """Who made it, as MKL tells them apart."""
        return next((name for name in ("Intel", "AMD") if name in self.model), "")


def variables(before: Processor, now: Processor, computed: ComputeFacts) -> Iterator[tuple[str, str]]:
    """Yield the variables that make libraries on this processor choose as they did on that one."""
    if before.arithmetic != now.arithmetic:
        yield from _levels(before, now, computed)
        unused = [name for name in computed.texts("numpy", "unused") if _NUMPY.get(name, _NOTHING) <= now.flags]
        if unused:
            yield "NPY_DISABLE_CPU_FEATURES", " ".join(unused)
        hidden = [name for flag, names in _LIBC.items() if flag in now.flags - before.flags for name in names]
        if hidden:
            yield "GLIBC_TUNABLES", "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in hidden)
    core = computed.text("openblas", "core")
    if _CORES.get(core, _NOTHING) <= now.flags:
        yield "OPENBLAS_CORETYPE", core


_NOTHING = frozenset({"(no processor has this)"})


def _levels(before: Processor, now: Processor, computed: ComputeFacts) -> Iterator[tuple[str, str]]:
    """Yield the highest level of each library that this processor would exceed."""
    chosen = computed.text("torch", "capability")
    if chosen in dict(_ATEN) and _rises(_ATEN, chosen, now):
        yield "ATEN_CPU_CAPABILITY", chosen.lower()
    has_onednn = any(computed.has(library) for library in ("torch", "tensorflow", "onednn"))
    for variable, used, levels in (
        ("ONEDNN_MAX_CPU_ISA", has_onednn, _ONEDNN),
        ("MKL_ENABLE_INSTRUCTIONS", computed.has("mkl"), _MKL),
    ):
        level = before.level(levels)
        if used and level and _rises(levels, level, now):
            yield variable, level


def _rises(levels: Levels, chosen: str, now: Processor) -> bool:
    """Return whether this processor has a higher level than was chosen."""
    names = [name for name, _ in levels]
    here = now.level(levels)
    return bool(here) and names.index(here) > names.index(chosen)


def not_possible(before: Processor, now: Processor, computed: ComputeFacts) -> Iterator[str]:
    """Yield what this processor cannot do as the other one did."""
    lacking = sorted(before.arithmetic - now.arithmetic)
    levels = before.level(_GENERAL), now.level(_GENERAL)
    if lacking and levels[0] != levels[1]:
        yield f"recorded with {levels[0]}, this processor has {levels[1]}: results will differ"
    elif lacking:
        yield f"recorded with {', '.join(lacking)}, which this processor lacks: results can differ"
    core = computed.text("openblas", "core")
    if core and not _CORES.get(core, _NOTHING) <= now.flags:
        yield f"OpenBLAS computed by its code for {core}, which this processor cannot be told to take"
    if computed.has("mkl") and before.maker != now.maker:
        yield f"MKL chooses its code by the processor's maker too: {before.maker or 'unknown'} recorded," + (
            f" {now.maker or 'unknown'} now: results can differ"
        )
