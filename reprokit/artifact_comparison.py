"""Does what ``native/artifacts`` does, in Python, for installations without that library: the same results, slowly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

_RAW, _UNSIGNED, _SIGNED, _FLOAT = range(4)
_IEEE, _FINITE, _UNSIGNED_ZERO = 1, 2, 3
_BLOCK = 4096  # bytes that are skipped at once where they are equal
_POLYNOMIAL = 0x82F63B78  # of CRC-32C


class PythonComparison:
    """Takes the place of the library that compare.h declares; ``ffi`` has read that header."""

    def __init__(self, ffi: Any):
        self._ffi = ffi

    def _bytes(self, data: Any, size: int) -> bytes:
        return bytes(self._ffi.buffer(self._ffi.cast("char *", data), size))

    def rka_decode(self, form: Any, code: int) -> float:
        """Return the value of one component."""
        return float(_decoded(form, code).value)

    def rka_unpack(self, bits: int, first: int, count: int, packed: Any, codes: Any) -> None:
        """Write codes of less than a byte, the first in the lowest bits, to a byte each."""
        end = ((first + count) * bits + 7) // 8
        whole = int.from_bytes(self._bytes(packed, end), "little") >> first * bits
        mask = (1 << bits) - 1
        self._ffi.memmove(codes, bytes(whole >> i * bits & mask for i in range(count)), count)

    def rka_gather(
        self, size: int, rank: int, shape: Any, from_strides: Any, to_strides: Any, source: Any, target: Any
    ) -> None:
        """Copy the elements of a box from where one kind of strides (in elements) says to where the other does."""
        source, target = self._ffi.cast("char *", source), self._ffi.cast("char *", target)
        places = [(0, 0)]
        for axis in range(rank):
            steps = [(i * from_strides[axis], i * to_strides[axis]) for i in range(shape[axis])]
            places = [(start + step, end + to) for start, end in places for step, to in steps]
        for start, end in places:
            self._ffi.memmove(target + end * size, source + start * size, size)

    def rka_first_other(self, left: Any, right: Any, size: int) -> int:
        """Return the first byte that differs, else the size."""
        pairs = zip(self._bytes(left, size), self._bytes(right, size), strict=True)
        return next((i for i, (left_byte, right_byte) in enumerate(pairs) if left_byte != right_byte), size)

    def rka_count_other(self, left: Any, right: Any, size: int) -> int:
        """Return how many bytes differ."""
        pairs = zip(self._bytes(left, size), self._bytes(right, size), strict=True)
        return sum(left_byte != right_byte for left_byte, right_byte in pairs)

    def rka_crc32c(self, crc: int, data: Any, size: int) -> int:
        """Return the sum of bytes that follow on those whose sum is crc; 0 before the first."""
        table = _table()
        crc ^= 0xFFFFFFFF
        for byte in self._bytes(data, size):
            crc = crc >> 8 ^ table[(crc ^ byte) & 255]
        return crc ^ 0xFFFFFFFF

    def rka_tfrecords(self, state: Any, data: Any, size: int) -> int:
        """Take in bytes up to the end of the first bad record; returns how many these were."""
        whole, at = self._bytes(data, size), 0
        state.begun = 0 if state.wrong else state.begun
        state.good = state.wrong = 0
        while at < size and not state.wrong:
            begun, foot = state.begun, 12 + state.length
            start, end = (0, 12) if begun < 12 else (12, foot) if begun < foot else (foot, foot + 4)
            piece = whole[at : at + end - begun]
            at += len(piece)
            state.begun += len(piece)
            if begun < 12 or start == foot:
                self._ffi.memmove(state.bytes + (begun - start), piece, len(piece))
                if state.begun == end:
                    self._compare_sum(state, begun < 12)
            else:
                state.crc = self.rka_crc32c(state.crc, self._ffi.from_buffer(piece), len(piece))
        return at

    def _compare_sum(self, state: Any, is_head: bool) -> None:
        crc = self.rka_crc32c(0, state.bytes, 8) if is_head else state.crc
        held = bytes(state.bytes)
        state.wrong = held[8:] != _masked(crc) if is_head else held[:4] != _masked(crc)
        if is_head:
            state.length, state.crc = int.from_bytes(held[:8], "little"), 0
        elif not state.wrong:
            state.good += 1
            state.begun = 0

    def rka_compare(
        self,
        form: Any,
        tolerance: Any,
        left: Any,
        left_big: bool,
        right: Any,
        right_big: bool,
        count: int,
        base: int,
        measured: Any,
    ) -> None:
        """Compare so many elements, of which the first has the index base, and add to what was measured."""
        parts = 1 if form.kind == _RAW else form.parts
        size = form.size * parts
        left_bytes, right_bytes = self._bytes(left, count * size), self._bytes(right, count * size)
        measured.compared += count
        step = max(1, _BLOCK // size) * size
        for block in range(0, count * size, step):
            if left_big == right_big and left_bytes[block : block + step] == right_bytes[block : block + step]:
                continue
            for at in range(block, min(block + step, count * size), size):
                index = base + at // size
                if form.kind == _RAW:
                    if left_bytes[at : at + size] != right_bytes[at : at + size]:
                        _count_element(index, False, measured)
                    continue
                pairs = [
                    (_load(left_bytes, place, form.size, left_big), _load(right_bytes, place, form.size, right_big))
                    for place in range(at, at + size, form.size)
                ]
                within = [_measure(form, tolerance, *pair, index, measured) for pair in pairs if pair[0] != pair[1]]
                if within:
                    _count_element(index, all(within), measured)


def _masked(crc: int) -> bytes:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


@lru_cache(maxsize=1)
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0) for crc in table]
    return table


def _load(data: bytes, at: int, size: int, big: bool) -> int:
    return int.from_bytes(data[at : at + size], "big" if big else "little")


def _decoded(form: Any, code: int) -> SimpleNamespace:
    """Return the sign, the magnitude (of floats the code without its sign) and the value of a component."""
    code &= (1 << form.bits) - 1
    number = SimpleNamespace(code=code, magnitude=code, negative=False, nan=False, infinite=False)
    if form.kind != _FLOAT:
        whole = code
        if form.kind == _SIGNED and code >> form.bits - 1:
            whole -= 1 << form.bits
        number.negative, number.magnitude, number.value = whole < 0, abs(whole), float(whole)
        return number
    if not form.exponents_only:
        sign = 1 << form.bits - 1
        number.negative, number.magnitude = bool(code & sign), code & sign - 1
    exponents = (1 << form.exponent_bits) - 1 << form.mantissa_bits
    if form.specials == _IEEE:
        number.nan, number.infinite = number.magnitude > exponents, number.magnitude == exponents
    elif form.specials == _FINITE:
        number.nan = number.magnitude == exponents | (1 << form.mantissa_bits) - 1
    elif form.specials == _UNSIGNED_ZERO:
        number.nan = number.negative and number.magnitude == 0
    value = math.inf if number.infinite else math.nan if number.nan else _magnitude(form, number.magnitude)
    number.value = -value if number.negative else value
    return number


def _magnitude(form: Any, magnitude: int) -> float:
    exponent, mantissa = magnitude >> form.mantissa_bits, magnitude & (1 << form.mantissa_bits) - 1
    if form.exponents_only:
        return math.ldexp(1.0, exponent - form.bias)
    if exponent:
        mantissa |= 1 << form.mantissa_bits
    return math.ldexp(mantissa, (exponent or 1) - form.bias - form.mantissa_bits)


def _measure(form: Any, tolerance: Any, left_code: int, right_code: int, at: int, measured: Any) -> bool:
    """Count one pair of components that differ, and return whether it is within the tolerances."""
    left, right = _decoded(form, left_code), _decoded(form, right_code)
    if left.code == right.code:  # they differ in bits that no number has, of a byte that holds four
        return False
    if left.nan or right.nan:
        measured.nan_payload += left.nan and right.nan
        measured.nan += not (left.nan and right.nan)
        return bool(left.nan and right.nan)
    if left.infinite or right.infinite:
        measured.infinite += 1
        return False
    is_float = form.kind == _FLOAT
    same_sign = left.negative == right.negative
    ulp = abs(left.magnitude - right.magnitude) if same_sign else left.magnitude + right.magnitude
    ulp &= (1 << 64) - 1
    absolute, relative = _distances(left.value, right.value, None if is_float else float(ulp))
    if is_float and left.value == 0 and right.value == 0:
        measured.zero_sign += 1
    elif is_float and not same_sign and left.value != 0 and right.value != 0:
        measured.sign_change += 1
    else:
        measured.histogram[0 if ulp <= 1 else (ulp - 1).bit_length()] += 1
    for extreme, value, whole in _extremes(measured, absolute, relative, ulp, is_float):
        if not measured.finite or (value, whole) > (extreme.value, extreme.whole):
            extreme.value, extreme.whole, extreme.at = value, whole, at
    measured.finite += 1
    return bool(ulp <= tolerance.ulp or absolute <= tolerance.absolute + tolerance.relative * abs(right.value))


def _distances(left: float, right: float, whole: float | None) -> tuple[float, float]:
    """Return the absolute and the relative distance; whole: the absolute one of integers."""
    absolute = abs(left - right) if whole is None else whole
    largest = max(abs(left), abs(right))
    if math.isinf(absolute):  # the difference of two doubles need not be one
        return absolute, abs(left / largest - right / largest)
    return absolute, absolute / largest if largest > 0 else 0.0


def _extremes(
    measured: Any, absolute: float, relative: float, ulp: int, is_float: bool
) -> Iterator[tuple[Any, float, int]]:
    yield measured.absolute, absolute, 0 if is_float else ulp
    yield measured.relative, relative, 0
    yield measured.ulp, float(ulp), ulp


def _count_element(at: int, accepted: bool, measured: Any) -> None:
    if not measured.differing:
        measured.first = at
    measured.differing += 1
    if not accepted:
        if not measured.beyond:
            measured.first_beyond = at
        measured.beyond += 1
