"""Describes numbers exactly, as a VALUE of metrics.jsonl; nested results get one VALUE for each part."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_TEXT = 65536
MAX_SPREAD = 100  # elements of an array that are described one by one
_FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
_INTEGERS = frozenset(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])


def describe(value: Any) -> dict[str, object]:
    """Return the VALUE of a number or text of Python, NumPy, PyTorch, TensorFlow, JAX or Keras."""
    if isinstance(value, bool):
        return {"dtype": "bool", "decimal": value}
    if isinstance(value, str):
        return {"dtype": "str", "text": str(value)[:MAX_TEXT]}
    if isinstance(value, int):
        return _integer(int(value))
    if type(value) is float:
        return from_float("float64", value)
    if hasattr(value, "dtype"):
        return _describe_array(value)
    if isinstance(value, complex):
        return {"dtype": "str", "text": repr(value)}
    return from_float("float64", float(value))  # Fraction, Decimal, subclasses of float


def _describe_array(value: Any) -> dict[str, object]:
    if hasattr(value, "detach"):  # PyTorch
        if value.numel() == 1:
            return from_number(str(value.dtype).rpartition(".")[2], value.detach().item())
    elif not hasattr(value, "tobytes"):  # TensorFlow, Keras
        return _describe_array(value.numpy())
    elif value.size == 1:
        return from_number(value.dtype.name, value.item())
    from .digests import describe_array

    return {"dtype": "str", "text": str(describe_array(value)["digest"])}


def from_number(dtype: str, number: Any) -> dict[str, object]:
    """Return the VALUE of a Python number that came out of an array of this dtype."""
    if dtype == "bool":
        return {"dtype": "bool", "decimal": bool(number)}
    if dtype in _INTEGERS:
        return _integer(int(number))
    if isinstance(number, float):
        return from_float(dtype, number)
    return {"dtype": "str", "text": str(number)[:MAX_TEXT]}


def from_float(dtype: str, number: float) -> dict[str, object]:
    """Return the VALUE of a float with its exact bits; other types than IEEE's and bfloat16 become texts."""
    if dtype == "bfloat16":
        bits = struct.pack(">f", number)[:2]
    elif dtype in _FLOATS:
        bits = struct.pack(">" + _FLOATS[dtype], number)
    else:
        return {"dtype": "str", "text": f"{dtype} {number!r}"}
    return {"dtype": dtype, "bits": bits.hex(), "decimal": _shortest(dtype, number, bits)}


def bits_of(value: dict[str, Any]) -> tuple[str, int] | None:
    """Return dtype and bits of a VALUE that is a number; None of a text."""
    dtype, bits = value["dtype"], value.get("bits")
    if bits is not None:
        return dtype, int(bits, 16)
    return None if dtype == "str" else (dtype, value["decimal"] % (1 << 64))


def _shortest(dtype: str, number: float, bits: bytes) -> float | None:
    """Return the shortest decimal that rounds to the same bits, as NumPy prints it; None if it is not finite."""
    if number - number != 0:
        return None
    if dtype in ("float16", "float32"):
        form = ">" + _FLOATS[dtype]
        shortest = number
        for precision in range(8, 0 if dtype == "float16" else 5, -1):  # most numbers need nearly all digits
            short = float(f"{number:.{precision}g}")
            if not _packs_to(form, short, bits):
                break
            shortest = short
        return shortest
    return number


def _packs_to(form: str, number: float, bits: bytes) -> bool:
    try:
        return struct.pack(form, number) == bits
    except OverflowError:  # it was rounded up beyond the largest number
        return False


def _integer(number: int) -> dict[str, object]:
    if -(1 << 63) <= number < 1 << 63:
        return {"dtype": "int", "decimal": number}
    return {"dtype": "str", "text": str(number)[:MAX_TEXT]}  # JSON readers disagree about larger ones


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each leaf in dictionaries, lists and tuples, except None."""
    if isinstance(value, dict):
        for key in value:
            yield from leaves(f"{name}/{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from leaves(f"{name}/{number}", part)
    elif value is not None:
        yield name, value


def described(name: str, value: Any) -> dict[str, dict[str, object]]:
    """Return the VALUEs of a metric's result by name; elements of small arrays one by one."""
    values: dict[str, dict[str, object]] = {}
    for part, leaf in leaves(name, value):
        count = leaf.numel() if hasattr(leaf, "numel") else getattr(leaf, "size", 1)
        if hasattr(leaf, "reshape") and 1 < count <= MAX_SPREAD:
            flat = leaf.reshape(-1)
            values.update({f"{part}/{number}": describe(flat[number]) for number in range(count)})
        else:
            values[part] = describe(leaf)
    return values
