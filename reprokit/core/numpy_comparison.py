"""Does what ``native/artifacts`` does by NumPy, for installations without that library: the same results."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy

_RAW, _UNSIGNED, _SIGNED, _FLOAT = range(4)
_IEEE, _FINITE, _UNSIGNED_ZERO = 1, 2, 3
_POLYNOMIAL = 0x82F63B78  # of CRC-32C

Array = Any  # numpy.ndarray, of which versions differ in what types they infer


class _Numbers(NamedTuple):
    """The components of a tensor: without unused bits, and of floats the magnitude is the code without its sign."""

    code: Array
    magnitude: Array
    negative: Array
    nan: Array
    infinite: Array
    value: Array

    def at(self, where: Array) -> _Numbers:
        """Return some of them."""
        return _Numbers(*(part[where] for part in self))


class NumpyComparison:
    """Takes the place of the library that compare.h declares; ``ffi`` has read that header."""

    def __init__(self, ffi: Any):
        self._ffi = ffi

    def _array(self, data: Any, size: int, dtype: str = "u1") -> Array:
        """Return bytes at an address as an array, without a copy."""
        return numpy.frombuffer(self._ffi.buffer(self._ffi.cast("char *", data), size), dtype)

    def rka_decode(self, form: Any, code: int) -> float:
        """Return the value of one component."""
        return float(_decoded(form, numpy.array([code], numpy.uint64)).value[0])

    def rka_unpack(self, bits: int, first: int, count: int, packed: Any, codes: Any) -> None:
        """Write codes of less than a byte, the first in the lowest bits, to a byte each."""
        end = (first + count) * bits
        single = numpy.unpackbits(self._array(packed, (end + 7) // 8), bitorder="little")[first * bits : end]
        self._array(codes, count)[:] = numpy.packbits(single.reshape(count, bits), axis=1, bitorder="little")[:, 0]

    def rka_gather(
        self, size: int, rank: int, shape: Any, from_strides: Any, to_strides: Any, source: Any, target: Any
    ) -> None:
        """Copy the elements of a box from where one kind of strides (in elements) says to where the other does."""
        lengths = [shape[axis] for axis in range(rank)]
        views = []
        for data, steps in ((source, from_strides), (target, to_strides)):
            span = 1 + sum((length - 1) * steps[axis] for axis, length in enumerate(lengths))
            flat = self._array(data, span * size, f"V{size}")
            strides = [steps[axis] * size for axis in range(rank)]
            views.append(numpy.lib.stride_tricks.as_strided(flat, lengths, strides))
        views[1][...] = views[0]

    def rka_first_other(self, left: Any, right: Any, size: int) -> int:
        """Return the first byte that differs, else the size."""
        differs = self._array(left, size) != self._array(right, size)
        return int(differs.argmax()) if differs.any() else size

    def rka_count_other(self, left: Any, right: Any, size: int) -> int:
        """Return how many bytes differ."""
        return int(numpy.count_nonzero(self._array(left, size) != self._array(right, size)))

    def rka_crc32c(self, crc: int, data: Any, size: int) -> int:
        """Return the sum of bytes that follow on those whose sum is crc; 0 before the first."""
        table = _table()
        crc ^= 0xFFFFFFFF
        for byte in self._array(data, size).tobytes():
            crc = crc >> 8 ^ table[(crc ^ byte) & 255]
        return crc ^ 0xFFFFFFFF

    def rka_tfrecords(self, state: Any, data: Any, size: int) -> int:
        """Take in bytes up to the end of the first bad record; returns how many these were."""
        whole, at = self._array(data, size).tobytes(), 0
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
        measured.compared += count
        if form.kind == _RAW:
            both = [self._array(data, count * form.size).reshape(count, form.size) for data in (left, right)]
            differing = numpy.flatnonzero((both[0] != both[1]).any(axis=1))
            _count_elements(base, differing, differing, measured)
            return
        codes = [
            self._array(data, count * form.size * form.parts, f"{'>' if big else '<'}u{form.size}")
            for data, big in ((left, left_big), (right, right_big))
        ]
        where = numpy.flatnonzero(codes[0] != codes[1])
        if not len(where):
            return
        numbers = [_decoded(form, code[where].astype(numpy.uint64)) for code in codes]
        elements = where // form.parts
        accepted = _measure(form, tolerance, (numbers[0], numbers[1]), base + elements, measured)
        _count_elements(base, numpy.unique(elements), numpy.unique(elements[~accepted]), measured)


def _masked(crc: int) -> bytes:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


@lru_cache(maxsize=1)
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0) for crc in table]
    return table


def _decoded(form: Any, code: Array) -> _Numbers:
    """Return what codes mean, of which unused bits are cleared."""
    code = code & numpy.uint64((1 << form.bits) - 1)
    nothing, sign = numpy.zeros(code.shape, bool), numpy.uint64(1 << form.bits - 1)
    negative = nothing if form.kind == _UNSIGNED or form.exponents_only else code >= sign
    if form.kind != _FLOAT:
        complement = (~code + numpy.uint64(1)) & numpy.uint64((1 << form.bits) - 1)
        magnitude = numpy.where(negative, complement, code)
        value = magnitude.astype(numpy.float64)
        return _Numbers(code, magnitude, negative, nothing, nothing, numpy.where(negative, -value, value))
    magnitude = numpy.where(negative, code ^ sign, code)
    exponents = numpy.uint64((1 << form.exponent_bits) - 1 << form.mantissa_bits)
    nan = infinite = nothing
    if form.specials == _IEEE:
        nan, infinite = magnitude > exponents, magnitude == exponents
    elif form.specials == _FINITE:
        nan = magnitude == exponents | numpy.uint64((1 << form.mantissa_bits) - 1)
    elif form.specials == _UNSIGNED_ZERO:
        nan = negative & (magnitude == 0)
    finite = numpy.where(nan | infinite, numpy.uint64(0), magnitude)
    value = numpy.where(infinite, numpy.inf, numpy.where(nan, numpy.nan, _values(form, finite)))
    return _Numbers(code, magnitude, negative, nan, infinite, numpy.where(negative, -value, value))


def _values(form: Any, magnitude: Array) -> Array:
    """Return the values of finite floats without their signs."""
    if form.bits == 64:
        return magnitude.view(numpy.float64)
    exponent = (magnitude >> numpy.uint64(form.mantissa_bits)).astype(numpy.int32)
    mantissa = magnitude & numpy.uint64((1 << form.mantissa_bits) - 1)
    if form.exponents_only:
        return numpy.ldexp(1.0, exponent - form.bias)
    mantissa = numpy.where(exponent > 0, mantissa | numpy.uint64(1 << form.mantissa_bits), mantissa)
    shifts = numpy.maximum(exponent, 1) - (form.bias + form.mantissa_bits)
    return numpy.ldexp(mantissa.astype(numpy.float64), shifts)


def _measure(form: Any, tolerance: Any, both: tuple[_Numbers, _Numbers], at: Array, measured: Any) -> Array:
    """Count pairs of components that differ, and return which are within the tolerances."""
    left, right = both
    differs = left.code != right.code  # else they differ in bits that no number has, of a byte that holds four
    any_nan, both_nan = differs & (left.nan | right.nan), differs & left.nan & right.nan
    any_infinite = differs & ~any_nan & (left.infinite | right.infinite)
    measured.nan_payload += int(both_nan.sum())
    measured.nan += int((any_nan & ~both_nan).sum())
    measured.infinite += int(any_infinite.sum())
    finite = differs & ~any_nan & ~any_infinite
    accepted = both_nan
    if finite.any():
        accepted[finite] = _measure_finite(form, tolerance, (left.at(finite), right.at(finite)), at[finite], measured)
    return accepted


def _measure_finite(form: Any, tolerance: Any, both: tuple[_Numbers, _Numbers], at: Array, measured: Any) -> Array:
    (left, right), is_float = both, form.kind == _FLOAT
    same_sign = left.negative == right.negative
    high, low = numpy.maximum(left.magnitude, right.magnitude), numpy.minimum(left.magnitude, right.magnitude)
    ulp = numpy.where(same_sign, high - low, high + low)
    whole = ulp.astype(numpy.float64)
    absolute, relative = _distances(left.value, right.value, None if is_float else whole)
    zeros = (left.value == 0).astype(int) + (right.value == 0)
    zero_sign, sign_change = is_float & (zeros == 2), is_float & ~same_sign & (zeros == 0)
    measured.zero_sign += int(zero_sign.sum())
    measured.sign_change += int(sign_change.sum())
    for bucket, count in enumerate(numpy.bincount(_buckets(ulp[~zero_sign & ~sign_change]))):
        measured.histogram[bucket] += int(count)
    nothing = numpy.zeros_like(ulp)
    for extreme, value, exact in (
        (measured.absolute, absolute, nothing if is_float else ulp),
        (measured.relative, relative, nothing),
        (measured.ulp, whole, ulp),
    ):
        _update(extreme, value, exact, at, is_first=not measured.finite)
    measured.finite += len(at)
    with numpy.errstate(over="ignore"):
        bound = tolerance.absolute + tolerance.relative * numpy.abs(right.value)
    is_within: Array = (ulp <= numpy.uint64(tolerance.ulp)) | (absolute <= bound)
    return is_within


def _distances(left: Array, right: Array, whole: Array | None) -> tuple[Array, Array]:
    """Return the absolute and the relative distances; whole: the absolute ones of integers."""
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        absolute = numpy.abs(left - right) if whole is None else whole
        largest = numpy.maximum(numpy.abs(left), numpy.abs(right))
        relative = numpy.where(largest > 0, absolute / largest, 0.0)
        scaled = numpy.abs(left / largest - right / largest)  # the difference of two doubles need not be one
    return absolute, numpy.where(numpy.isinf(absolute), scaled, relative)


def _buckets(ulp: Array) -> Array:
    """Return the bucket of each distance: 0 up to 1, else the bits of what is one less."""
    less = numpy.maximum(ulp, numpy.uint64(1)) - numpy.uint64(1)
    halves = less & numpy.uint64(0xFFFFFFFF), less >> numpy.uint64(32)  # of which doubles hold every value
    low, high = (numpy.frexp(half.astype(numpy.float64))[1] for half in halves)
    return numpy.where(high > 0, high + 32, low)


def _update(extreme: Any, values: Array, wholes: Array, at: Array, *, is_first: bool) -> None:
    """Update a maximum with distances; of equal ones the first stays."""
    value = values.max()
    candidates = numpy.flatnonzero(values == value)
    position = candidates[wholes[candidates].argmax()]
    if is_first or (float(value), int(wholes[position])) > (extreme.value, extreme.whole):
        extreme.value, extreme.whole, extreme.at = float(value), int(wholes[position]), int(at[position])


def _count_elements(base: int, differing: Array, beyond: Array, measured: Any) -> None:
    if len(differing) and not measured.differing:
        measured.first = base + int(differing[0])
    if len(beyond) and not measured.beyond:
        measured.first_beyond = base + int(beyond[0])
    measured.differing += len(differing)
    measured.beyond += len(beyond)
