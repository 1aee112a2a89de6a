"""Tensors of a snapshot as NumPy arrays; types that NumPy lacks become float32, which holds their values exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

    from reprokit.agent.capture.reading import SavedTensor

PLAIN = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
    "C128": "<c16",
}
# Of 8-bit floats: bits of exponent and mantissa, bias, and how what is no number is written.
SMALL = {
    "F8_E4M3": (4, 3, 7, "finite"),
    "F8_E5M2": (5, 2, 15, "ieee"),
    "F8_E4M3FNUZ": (4, 3, 8, "unsigned zero"),
    "F8_E5M2FNUZ": (5, 2, 16, "unsigned zero"),
}


class Arrays(Mapping[str, "numpy.ndarray[Any, Any]"]):
    """The tensors by name: read-only arrays, of which only what is looked at is read."""

    def __init__(self, tensors: Mapping[str, SavedTensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        return array(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def array(tensor: SavedTensor) -> numpy.ndarray[Any, Any]:
    """One tensor as an array that nobody may write to."""
    import numpy

    def raw(kind: str) -> Any:
        return numpy.frombuffer(tensor.data, dtype=kind)

    if tensor.dtype in PLAIN:
        found = raw(PLAIN[tensor.dtype])
    elif tensor.dtype == "BF16":
        found = (raw("<u2").astype("<u4") << 16).view("<f4")
    elif tensor.dtype == "F8_E8M0":
        found = numpy.array([math.ldexp(1, byte - 127) for byte in range(255)] + [math.nan], dtype="<f4")[raw("u1")]
    else:
        found = numpy.array(_values(*SMALL[tensor.dtype]), dtype="<f4")[raw("u1")]
    found.flags.writeable = False
    shaped: numpy.ndarray[Any, Any] = found.reshape(tensor.shape)
    return shaped


@cache
def _values(exponent: int, mantissa: int, bias: int, style: str) -> tuple[float, ...]:
    """What each byte means."""
    return tuple(_value(byte, exponent, mantissa, bias, style) for byte in range(256))


def _value(byte: int, exponent: int, mantissa: int, bias: int, style: str) -> float:
    sign = -1.0 if byte & 0x80 else 1.0
    power, fraction = (byte & 0x7F) >> mantissa, byte & ((1 << mantissa) - 1)
    if style == "unsigned zero":
        if byte == 0x80:
            return math.nan
    elif power == (1 << exponent) - 1:
        if style == "ieee":
            return math.nan if fraction else sign * math.inf
        if fraction == (1 << mantissa) - 1:
            return math.nan
    if power == 0:
        return sign * math.ldexp(fraction, 1 - bias - mantissa)
    return sign * math.ldexp(fraction + (1 << mantissa), power - bias - mantissa)
