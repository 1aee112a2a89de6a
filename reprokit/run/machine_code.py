"""Finds instructions that give entropy in machine code: RDRAND and RDSEED of x86-64, RNDR and RNDRRS of aarch64."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

AROUND = 128  # bytes before and after a match that show whether it is an instruction

_RDRAND = 6  # value of ModRM's reg field; 7 for RDSEED
_CANDIDATE = re.compile(
    rb"\x0f\xc7[\xf0-\xff]"
)  # RDRAND and RDSEED with a register operand; others are different instructions
_RNDR = re.compile(rb"[\x00-\x3f]\x24\x3b\xd5")  # mrs Xt, RNDR or RNDRRS

_LEGACY_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_VEX3, _VEX2, _EVEX = 0xC4, 0xC5, 0x62


def _opcodes(text: str) -> frozenset[int]:
    """Return the opcodes in a text such as `00-03 63`."""
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
    """The relevant fields of a decoded instruction; `operand` is its ModRM byte, -1 if it has none."""

    length: int
    table: int  # 1 for one-byte opcodes, 2 for those after 0F
    opcode: int
    opcode_at: int  # offset of the opcode in the instruction
    operand: int
    repeated: bool  # prefix F3


def _modrm_length(code: bytes, at: int) -> int:
    """Return the length of ModRM with its SIB and displacement."""
    modrm = code[at]
    mode, register = modrm >> 6, modrm & 7
    if mode == 3:
        return 1
    has_sib = register == 4
    if mode == 0:
        no_base = register == 5 or (has_sib and code[at + 1] & 7 == 5)
        return 1 + has_sib + (4 if no_base else 0)
    return 1 + has_sib + (1 if mode == 1 else 4)


def _vector_instruction(code: bytes, at: int, start: int) -> Instruction | None:
    """Return an instruction with a VEX or EVEX prefix, which selects the opcode table."""
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


def _after_0f(code: bytes, at: int, start: int, repeated: bool) -> Instruction | None:
    """Return an instruction whose opcode follows 0F, 0F 38 or 0F 3A."""
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


def _immediate_size(opcode: int, operand: int, narrow: bool, wide: bool, short: bool) -> int:
    """Return the immediate's bytes for a one-byte opcode; prefixes 66 (narrow), REX.W (wide), 67 (short)."""
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
    """Return the 64-bit instruction that begins at `start`; None if it is invalid or cut off."""
    try:
        return _decode(code, start)
    except IndexError:
        return None


def _decode(code: bytes, start: int) -> Instruction | None:
    offset, prefixes, wide = start, set(), False
    while code[offset] in _LEGACY_PREFIXES and offset - start < 14:
        prefixes.add(code[offset])
        offset += 1
    if code[offset] & 0xF0 == 0x40:  # REX
        wide = bool(code[offset] & 8)
        offset += 1
    opcode = code[offset]
    if opcode in (_VEX3, _VEX2, _EVEX):
        instruction = _vector_instruction(code, offset, start)
    elif opcode == 0x0F:
        instruction = _after_0f(code, offset + 1, start, 0xF3 in prefixes)
    elif opcode in _INVALID or opcode in _LEGACY_PREFIXES:
        return None
    else:
        operand, end = -1, offset + 1
        if opcode in _MODRM:
            operand = code[end]
            end += _modrm_length(code, end)
        end += _immediate_size(opcode, operand, 0x66 in prefixes, wide, 0x67 in prefixes)
        instruction = Instruction(end - start, 1, opcode, offset - start, operand, 0xF3 in prefixes)
    return (
        instruction
        if instruction is not None and instruction.length <= 15 and start + instruction.length <= len(code)
        else None
    )


def _reads_carry(instruction: Instruction) -> bool:
    """Return whether it reads the carry flag, by which RDRAND and RDSEED report success."""
    if instruction.table == 1:
        is_immediate = instruction.opcode in (0x80, 0x81, 0x83) and instruction.operand >> 3 & 7 in (2, 3)
        return instruction.opcode in (0x72, 0x73, 0x76, 0x77) or 0x10 <= instruction.opcode <= 0x1D or is_immediate
    return instruction.table == 2 and instruction.opcode in (0x42, 0x43, 0x46, 0x47, 0x82, 0x83, 0x86, 0x87, 0x92, 0x93)


def _has_carry_check(code: bytes, offset: int) -> bool:
    for _ in range(4):
        instruction = decode(code, offset)
        if instruction is None:
            return False
        if _reads_carry(instruction):
            return True
        offset += instruction.length
    return False


def _instruction_at(code: bytes, start: int, opcode_offset: int) -> Instruction | None:
    """Return the instruction with its opcode at the given offset, if decoding from `start` leads to it."""
    while start < opcode_offset:
        instruction = decode(code, start)
        if instruction is None:
            return None
        if start + instruction.opcode_at == opcode_offset:
            return instruction
        start += instruction.length
    return None


def _is_instruction(code: bytes, offset: int) -> bool:
    """Return whether 0F C7 at `offset` is an instruction: decoding from most starts before it gets into step."""
    starts = range(max(0, offset - 96), max(1, offset - 32))
    decoded = [instruction for start in starts if (instruction := _instruction_at(code, start, offset + 1)) is not None]
    matching = [
        instruction for instruction in decoded if instruction.table == 2 and not instruction.repeated
    ]  # F3 makes it RDPID
    return 2 * len(matching) > len(starts) and _has_carry_check(code, offset + 3)


def x86_64(code: bytes, begin: int, end: int) -> Iterator[str]:
    """Yield the name of each entropy instruction between two offsets; the code around tells it from data."""
    for match in _CANDIDATE.finditer(code, begin, end):
        around = code[max(0, match.start() - AROUND) : match.start() + AROUND]
        if _is_instruction(around, min(match.start(), AROUND)):
            yield "RDRAND" if match[0][2] >> 3 & 7 == _RDRAND else "RDSEED"


def aarch64(code: bytes, begin: int, end: int) -> Iterator[str]:
    """Yield the name of each entropy instruction between two offsets of code aligned to four bytes."""
    for match in _RNDR.finditer(code, begin, end):
        if match.start() % 4 == 0:
            yield "RNDRRS" if match[0][0] & 0x20 else "RNDR"


SCANNERS: dict[int, Callable[[bytes, int, int], Iterator[str]]] = {62: x86_64, 183: aarch64}  # by e_machine of ELF
