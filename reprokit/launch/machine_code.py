"""Finds instructions that give entropy in machine code: RDRAND and RDSEED of x86-64, RNDR and RNDRRS of aarch64."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

AROUND = 128  # bytes before and behind an instruction that are looked at to tell it from chance

_RDRAND = 6  # what the reg field of ModRM says; 7 for RDSEED
_CANDIDATE = re.compile(
    rb"\x0f\xc7[\xf0-\xff]"
)  # RDRAND and RDSEED of a register; other operands are other instructions
_RNDR = re.compile(rb"[\x00-\x3f]\x24\x3b\xd5")  # mrs Xt, RNDR or RNDRRS

_LEGACY_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_VEX3, _VEX2, _EVEX = 0xC4, 0xC5, 0x62


def _opcodes(text: str) -> frozenset[int]:
    """Opcodes from a text like ``00-03 63``."""
    parts = [part.split("-") for part in text.split()]
    return frozenset(code for part in parts for code in range(int(part[0], 16), int(part[-1], 16) + 1))


# Intel's manual, volume 2, appendix A: opcodes with a ModRM byte, with an immediate, and none in 64-bit mode.
_MODRM = _opcodes(
    "00-03 08-0b 10-13 18-1b 20-23 28-2b 30-33 38-3b 63 69 6b 80-81 83-8f c0-c1 c6-c7 d0-d3 d8-df f6-f7 fe-ff"
)
_BYTE = _opcodes("04 0c 14 1c 24 2c 34 3c 6a 6b 70-7f 80 83 a8 b0-b7 c0 c1 c6 cd e0-e7 eb")
_WORD_OR_FOUR = _opcodes("05 0d 15 1d 25 2d 35 3d 68 69 81 a9 c7")
_INVALID = _opcodes("06 07 0e 16 17 1e 1f 27 2f 37 3f 60 61 82 9a ce d4-d6 ea")
_NO_MODRM_0F = _opcodes("05-09 0b 0e 30-37 77 80-8f a0-a2 a8-aa c8-cf")
_BYTE_0F = _opcodes("0f 70-73 a4 ac ba c2 c4-c6")
_INVALID_0F = _opcodes("04 0a 0c 24-27 36 39 3b-3f")


@dataclass(frozen=True)
class Instruction:
    """What is needed of a decoded instruction: ``operand`` is its ModRM byte, -1 for none."""

    length: int
    table: int  # 1 for opcodes of one byte, 2 for those behind 0F
    opcode: int
    opcode_at: int  # where in the instruction the opcode stands
    operand: int
    repeated: bool  # prefix F3


def _modrm_length(code: bytes, at: int) -> int:
    """ModRM with what belongs to it: SIB and displacement."""
    modrm = code[at]
    mode, register = modrm >> 6, modrm & 7
    if mode == 3:
        return 1
    has_sib = register == 4
    if mode == 0:
        no_base = register == 5 or (has_sib and code[at + 1] & 7 == 5)
        return 1 + has_sib + (4 if no_base else 0)
    return 1 + has_sib + (1 if mode == 1 else 4)


def _vector(code: bytes, at: int, start: int) -> Instruction | None:
    """Return an instruction with a VEX or EVEX prefix, which names the table of opcodes."""
    first = code[at]
    if first == _VEX2:
        table, opcode_at = 1, at + 2
    else:
        table, opcode_at = code[at + 1] & (0x1F if first == _VEX3 else 7), at + (3 if first == _VEX3 else 4)
    if table not in (1, 2, 3, 5, 6):
        return None
    opcode, end = code[opcode_at], opcode_at + 1
    operand = -1
    if not (table == 1 and opcode == 0x77):  # VZEROUPPER
        operand = code[end]
        end += _modrm_length(code, end)
    end += table == 3 or (table == 1 and opcode in _BYTE_0F)
    return Instruction(end - start, 16 + table, opcode, opcode_at - start, operand, False)


def _behind_0f(code: bytes, at: int, start: int, repeated: bool) -> Instruction | None:
    """Return an instruction whose opcode stands behind 0F, 0F 38 or 0F 3A."""
    opcode = code[at]
    if opcode in (0x38, 0x3A):
        end = at + 2 + _modrm_length(code, at + 2) + (opcode == 0x3A)
        return Instruction(end - start, 3, code[at + 1], at - start, code[at + 2], repeated)
    if opcode in _INVALID_0F:
        return None
    operand, end = -1, at + 1
    if opcode not in _NO_MODRM_0F:
        operand = code[end]
        end += _modrm_length(code, end)
    elif 0x80 <= opcode <= 0x8F:
        end += 4
    end += opcode in _BYTE_0F
    return Instruction(end - start, 2, opcode, at - start, operand, repeated)


def _immediate(opcode: int, operand: int, narrow: bool, wide: bool, short: bool) -> int:
    """Bytes of the immediate of a one-byte opcode; prefixes 66 (narrow), REX.W (wide), 67 (short)."""
    if opcode in _BYTE or (opcode == 0xF6 and operand & 0x30 == 0):
        return 1
    if opcode in _WORD_OR_FOUR or (opcode == 0xF7 and operand & 0x30 == 0):
        return 2 if narrow else 4
    if opcode in (0xE8, 0xE9):
        return 4
    if 0xB8 <= opcode <= 0xBF:
        return 8 if wide else 2 if narrow else 4
    if 0xA0 <= opcode <= 0xA3:
        return 4 if short else 8
    return {0xC2: 2, 0xCA: 2, 0xC8: 3}.get(opcode, 0)


def decode(code: bytes, start: int) -> Instruction | None:
    """Return the instruction of 64-bit mode that begins there; None where there is none or it is cut off."""
    try:
        return _decode(code, start)
    except IndexError:
        return None


def _decode(code: bytes, start: int) -> Instruction | None:
    at, prefixes, wide = start, set(), False
    while code[at] in _LEGACY_PREFIXES and at - start < 14:
        prefixes.add(code[at])
        at += 1
    if code[at] & 0xF0 == 0x40:  # REX
        wide = bool(code[at] & 8)
        at += 1
    opcode = code[at]
    if opcode in (_VEX3, _VEX2, _EVEX):
        found = _vector(code, at, start)
    elif opcode == 0x0F:
        found = _behind_0f(code, at + 1, start, 0xF3 in prefixes)
    elif opcode in _INVALID or opcode in _LEGACY_PREFIXES:
        return None
    else:
        operand, end = -1, at + 1
        if opcode in _MODRM:
            operand = code[end]
            end += _modrm_length(code, end)
        end += _immediate(opcode, operand, 0x66 in prefixes, wide, 0x67 in prefixes)
        found = Instruction(end - start, 1, opcode, at - start, operand, 0xF3 in prefixes)
    return found if found is not None and found.length <= 15 and start + found.length <= len(code) else None


def _takes_carry(found: Instruction) -> bool:
    """Return whether it looks at the carry flag, by which RDRAND and RDSEED say whether there was a number."""
    if found.table == 1:
        is_immediate = found.opcode in (0x80, 0x81, 0x83) and found.operand >> 3 & 7 in (2, 3)
        return found.opcode in (0x72, 0x73, 0x76, 0x77) or 0x10 <= found.opcode <= 0x1D or is_immediate
    return found.table == 2 and found.opcode in (0x42, 0x43, 0x46, 0x47, 0x82, 0x83, 0x86, 0x87, 0x92, 0x93)


def _is_followed_up(code: bytes, at: int) -> bool:
    for _ in range(4):
        found = decode(code, at)
        if found is None:
            return False
        if _takes_carry(found):
            return True
        at += found.length
    return False


def _reaches(code: bytes, start: int, goal: int) -> Instruction | None:
    """Return the instruction whose opcode stands at the goal, where code that is decoded from the start comes to it."""
    while start < goal:
        found = decode(code, start)
        if found is None:
            return None
        if start + found.opcode_at == goal:
            return found
        start += found.length
    return None


def _is_instruction(code: bytes, at: int) -> bool:
    """Whether these bytes (0F C7 and ModRM) are one, and no part of another's: code that is decoded from anywhere
    before falls into step within a few instructions."""
    starts = range(max(0, at - 96), max(1, at - 32))
    met = [found for start in starts if (found := _reaches(code, start, at + 1)) is not None]
    genuine = [found for found in met if found.table == 2 and not found.repeated]  # F3 makes it RDPID
    return 2 * len(genuine) > len(starts) and _is_followed_up(code, at + 3)


def x86_64(code: bytes, begin: int, end: int) -> Iterator[str]:
    """The name of each such instruction between two places in the code; what is around them tells it from chance."""
    for match in _CANDIDATE.finditer(code, begin, end):
        around = code[max(0, match.start() - AROUND) : match.start() + AROUND]
        if _is_instruction(around, min(match.start(), AROUND)):
            yield "RDRAND" if match[0][2] >> 3 & 7 == _RDRAND else "RDSEED"


def aarch64(code: bytes, begin: int, end: int) -> Iterator[str]:
    """Yield the same; the code begins at a multiple of four."""
    for match in _RNDR.finditer(code, begin, end):
        if match.start() % 4 == 0:
            yield "RNDRRS" if match[0][0] & 0x20 else "RNDR"


SCANNERS: dict[int, Callable[[bytes, int, int], Iterator[str]]] = {62: x86_64, 183: aarch64}  # by e_machine of ELF
