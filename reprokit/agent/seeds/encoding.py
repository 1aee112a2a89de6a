"""Encodes seeds as JSON from which the same value can be decoded: SEED in docs/format.md."""

from __future__ import annotations

import re
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_TEXT = 16 << 10  # characters of one seed as JSON: a state of MT19937 is some 7,000
MAX_DEPTH = 8  # of lists within lists
_WORD = 1 << 63
_DTYPE = re.compile(r"[<>|][iufb][1248]")


class NotExact(Exception):
    """A value cannot be encoded as JSON exactly."""


def encode(value: object) -> Any:
    """Return the value as JSON; raises NotExact for anything but numbers, texts, bytes, and lists of these."""
    return _encode(value, _SizeLimit())


class _SizeLimit:
    """The characters left of MAX_TEXT, so that a huge value is rejected before it is formatted."""

    def __init__(self) -> None:
        self.left = MAX_TEXT

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise NotExact("too long")


def _encode(value: Any, limit: _SizeLimit, depth: int = 0) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        limit.take(6)
        return value
    if kind is int:
        return _encode_int(value, limit)
    if kind is float:
        limit.take(32)
        return {"float": struct.pack(">d", value).hex()}
    if kind is str:
        limit.take(8 + 12 * len(value) if not value.isascii() else 8 + 6 * len(value))
        return {"text": value.encode("utf-8", "surrogatepass").hex()} if _has_surrogate(value) else value
    if kind in (bytes, bytearray):
        limit.take(32 + 2 * len(value))
        return {kind.__name__: value.hex()}
    if kind in (list, tuple):
        return _encode_list(value, limit, depth)
    return _encode_numpy(value, limit)


def _encode_int(value: int, limit: _SizeLimit) -> Any:
    if -_WORD <= value < _WORD:
        limit.take(21)
        return value
    limit.take(16 + value.bit_length() // 4)
    return {"int": hex(value)}


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _encode_list(value: Any, limit: _SizeLimit, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise NotExact("too deep")
    limit.take(12 + len(value))
    items = [_encode(item, limit, depth + 1) for item in value]
    return items if type(value) is list else {"tuple": items}


def _encode_numpy(value: Any, limit: _SizeLimit) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        raise NotExact(f"a {type(value).__qualname__}")
    if not _DTYPE.fullmatch(value.dtype.str):
        raise NotExact(f"of type {value.dtype}")
    limit.take(64 + 2 * value.nbytes + 21 * value.ndim)
    fields = {"dtype": value.dtype.str, "bytes": value.tobytes().hex()}
    return {**fields, "shape": list(value.shape)} if type(value) is numpy.ndarray else fields


def decode(content: Any, depth: int = 0) -> Any:
    """Return the value that was encoded; raises an error for invalid content."""
    if content is None or isinstance(content, (bool, int, str)):
        return content
    if depth > MAX_DEPTH:
        raise ValueError("lists too deep")
    if isinstance(content, list):
        return [decode(item, depth + 1) for item in content]
    if "dtype" in content:
        return _decode_numpy(content)
    ((kind, body),) = content.items()
    return _DECODERS[kind](body, depth)


_DECODERS: dict[str, Any] = {
    "int": lambda body, depth: int(body, 16),
    "float": lambda body, depth: struct.unpack(">d", bytes.fromhex(body))[0],
    "text": lambda body, depth: bytes.fromhex(body).decode("utf-8", "surrogatepass"),
    "bytes": lambda body, depth: bytes.fromhex(body),
    "bytearray": lambda body, depth: bytearray.fromhex(body),
    "tuple": lambda body, depth: tuple(decode(item, depth + 1) for item in body),
}


def _decode_numpy(content: Any) -> Any:
    numpy = sys.modules["numpy"]
    if not _DTYPE.fullmatch(content["dtype"]):
        raise ValueError("no type of a number")
    array = numpy.frombuffer(bytes.fromhex(content["bytes"]), dtype=content["dtype"])
    if "shape" in content:
        return array.reshape([int(size) for size in content["shape"]]).copy()
    return array[0]
