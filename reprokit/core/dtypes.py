"""The types of elements that can be compared, how they lie in memory, and how their values are shown."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from reprokit.core import native
from reprokit.core.errors import ArtifactDamaged

RAW, UNSIGNED, SIGNED, FLOAT = range(4)
_NO_SPECIALS, _IEEE, _FINITE, _UNSIGNED_ZERO = range(4)
PACKED = "_packed"  # ends the name of a type whose elements share bytes, the first in the lowest bits
LONGEST_RAW = 1 << 20  # bytes of one string or record
SHOWN_RAW = 24  # bytes of it that are shown
TEXTS = {"<U": "utf-32-le", ">U": "utf-32-be", "S": "utf-8"}  # encodings, by NumPy's codes
NOT_A_TIME = -(1 << 63)
_UNIT = re.compile(r"([mM])8\[([0-9]{0,9})(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]")
_SECONDS = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_PARTS = {unit: 1000**number for number, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), 1)}  # of a second


@dataclass(frozen=True)
class Dtype:
    """One type: the fields of struct rka_format, and the bits that an element takes in the file."""

    name: str
    kind: int
    size: int  # bytes of a component in memory
    bits: int
    parts: int = 1
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    specials: int = _NO_SPECIALS
    exponents_only: bool = False
    packed: bool = False
    precision: int = 17  # decimal digits that tell neighbors apart

    @property
    def element_size(self) -> int:
        """Bytes of an element in memory, where nothing is packed."""
        return self.size * self.parts

    def file_size(self, count: int) -> int:
        """Bytes that so many elements take in a file."""
        return (count * self.bits + 7) // 8 if self.packed else count * self.element_size

    @property
    def is_float(self) -> bool:
        return self.kind == FLOAT


def _float(name: str, exponent: int, mantissa: int, bias: int, specials: int, *, precision: int) -> Dtype:
    bits = 1 + exponent + mantissa
    size = (bits + 7) // 8
    return Dtype(name, FLOAT, size, bits, 1, exponent, mantissa, bias, specials, precision=precision)


_FLOATS = (
    _float("float64", 11, 52, 1023, _IEEE, precision=17),
    _float("float32", 8, 23, 127, _IEEE, precision=9),
    _float("float16", 5, 10, 15, _IEEE, precision=5),
    _float("bfloat16", 8, 7, 127, _IEEE, precision=4),
    _float("float8_e3m4", 3, 4, 3, _IEEE, precision=4),
    _float("float8_e4m3", 4, 3, 7, _IEEE, precision=4),
    _float("float8_e5m2", 5, 2, 15, _IEEE, precision=4),
    _float("float8_e4m3fn", 4, 3, 7, _FINITE, precision=4),
    _float("float8_e4m3fnuz", 4, 3, 8, _UNSIGNED_ZERO, precision=4),
    _float("float8_e5m2fnuz", 5, 2, 16, _UNSIGNED_ZERO, precision=4),
    _float("float8_e4m3b11fnuz", 4, 3, 11, _UNSIGNED_ZERO, precision=4),
    Dtype("float8_e8m0fnu", FLOAT, 1, 8, 1, 8, 0, 127, _FINITE, exponents_only=True, precision=4),
    _float("float6_e2m3fn", 2, 3, 1, _NO_SPECIALS, precision=4),
    _float("float6_e3m2fn", 3, 2, 3, _NO_SPECIALS, precision=4),
    _float("float4_e2m1fn", 2, 1, 1, _NO_SPECIALS, precision=4),
)
_INTEGERS = tuple(
    Dtype(f"{'u' if kind == UNSIGNED else ''}int{bits}", kind, (bits + 7) // 8, bits)
    for kind in (UNSIGNED, SIGNED)
    for bits in (2, 4, 8, 16, 32, 64)
)
_COMPLEX = tuple(
    Dtype(name, FLOAT, half.size, half.bits, 2, half.exponent_bits, half.mantissa_bits, half.bias, _IEEE,
          precision=half.precision)
    for name, half in (("complex128", _FLOATS[0]), ("complex64", _FLOATS[1]), ("complex32", _FLOATS[2]))
)  # fmt: skip
_NAMED = {dtype.name: dtype for dtype in (*_FLOATS, *_INTEGERS, *_COMPLEX, Dtype("bool", UNSIGNED, 1, 8))}
_RAW_NAME = re.compile(r"raw([1-9][0-9]{0,6})")


SAFETENSORS = {  # by the names that safetensors has for them
    "BOOL": "bool",
    "F4": "float4_e2m1fn_packed",
    "F6_E2M3": "float6_e2m3fn_packed",
    "F6_E3M2": "float6_e3m2fn_packed",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    **{
        f"{letter}{bits}": f"{name}{bits}" for letter, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)
    },
}


def named(name: str) -> Dtype:
    """The type of this name: NumPy's and ml_dtypes', the same with _packed, or rawN for N bytes that are no number."""
    plain = name.removesuffix(PACKED)
    dtype = _NAMED.get(plain)
    if dtype is not None and plain != name and dtype.bits < 8:
        return Dtype(**{**dtype.__dict__, "name": name, "packed": True})
    if dtype is not None and plain == name:
        return dtype
    raw = _RAW_NAME.fullmatch(name)
    if raw is None or int(raw[1]) > LONGEST_RAW:
        raise ArtifactDamaged(f"no type of elements is called {name[:40]!r}")
    return Dtype(name, RAW, int(raw[1]), 8 * int(raw[1]))


@lru_cache(maxsize=64)
def native_format(dtype: Dtype) -> Any:
    """Return the struct rka_format of a type."""
    ffi, _ = native.artifacts()
    fields = ("kind", "size", "bits", "parts", "exponent_bits", "mantissa_bits", "bias", "specials", "exponents_only")
    return ffi.new("struct rka_format *", {field: int(getattr(dtype, field)) for field in fields})


def shown(dtype: Dtype, element: bytes, *, exact: bool = False, meaning: str = "") -> str:
    """Return an element (little-endian) as text; exact: with its bits, where texts alone do not tell two apart.

    `meaning` is NumPy's code of a text ("<U", ">U", "S"), or of a date or duration with its unit ("M8[ns]").
    """
    if meaning and not exact and (text := _meant(element, meaning)):
        return text
    if dtype.kind == RAW:
        return _shown_raw(element)
    codes = [
        int.from_bytes(element[i * dtype.size : (i + 1) * dtype.size], "little") for i in range(dtype.parts)
    ]  # fmt: skip
    texts = [_shown_code(dtype, code, exact) for code in codes]
    return texts[0] if len(texts) == 1 else f"({texts[0]}, {texts[1]}i)"


def decoded(dtype: Dtype, code: int) -> float:
    """Return the number that these bits of a floating-point type stand for."""
    return float(native.artifacts()[1].rka_decode(native_format(dtype), code))


def _meant(element: bytes, meaning: str) -> str:
    """Return a text, date or duration; nothing if the element is none."""
    if meaning in TEXTS:
        try:
            text = element.decode(TEXTS[meaning])
        except UnicodeDecodeError:
            return ""
        return repr(text.rstrip("\0"))
    number, unit = int.from_bytes(element, "little", signed=True), _UNIT.fullmatch(meaning)
    if unit is None or number == NOT_A_TIME:
        return "NaT" if unit is not None else ""
    number *= int(unit[2] or 1)
    if unit[1] == "m":
        return f"{number} {unit[3]}"
    if unit[3] in "YM":
        year, month = divmod(number * (12 if unit[3] == "Y" else 1), 12)
        return f"{1970 + year:04d}" + (f"-{month + 1:02d}" if unit[3] == "M" else "")
    whole, rest = divmod(number * _SECONDS[unit[3]], 1) if unit[3] in _SECONDS else divmod(number, _PARTS[unit[3]])
    try:
        time = datetime(1970, 1, 1) + timedelta(seconds=whole)
    except OverflowError:
        return f"{number} {unit[3]} since 1970"
    if unit[3] in "DW":
        return time.date().isoformat()
    digits = len(str(_PARTS.get(unit[3], 1))) - 1
    return time.isoformat() + (f".{rest:0{digits}d}" if digits else "")


def _shown_raw(element: bytes) -> str:
    text = element[:SHOWN_RAW]
    return repr(text)[1:] + ("..." if len(element) > SHOWN_RAW else "")


def _shown_code(dtype: Dtype, code: int, exact: bool) -> str:
    bits = f" (0x{code:0{2 * dtype.size}x})"
    if dtype.name == "bool" and code < 2:
        return str(bool(code))
    if dtype.kind != FLOAT:
        low = code & ((1 << dtype.bits) - 1)
        value = low - (1 << dtype.bits) if dtype.kind == SIGNED and low >> (dtype.bits - 1) else low
        return f"{value}{bits if exact else ''}"
    number = decoded(dtype, code)
    if math.isnan(number):
        return f"nan{bits}"
    return _shortest(number, dtype) + (bits if exact else "")


def _shortest(number: float, dtype: Dtype) -> str:
    """As few digits as tell the number from its neighbors."""
    if dtype.bits == 64:
        return repr(number)
    if dtype.bits == 32:
        for digits in range(6, 9):
            text = f"{number:.{digits}g}"
            if _as_single(text) == number:
                return text
    return f"{number:.{dtype.precision}g}"


def _as_single(text: str) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])
    except OverflowError:
        return math.inf
