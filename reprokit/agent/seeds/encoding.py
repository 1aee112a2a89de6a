"""Seeds as JSON from which the same value can be built again: docs/format.md, SEED."""

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
    """A value that JSON cannot hold so that it can be built again."""


def encode(value: object) -> Any:
    """Return the value as JSON; raises NotExact for anything but plain numbers, texts, bytes and lists of them."""
    return _encode(value, _Room())


class _Room:
    """What is left of MAX_TEXT, so that no huge value is spelt out only to be refused."""

    def __init__(self) -> None:
        self.left = MAX_TEXT

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise NotExact("too long")


def _encode(value: Any, room: _Room, depth: int = 0) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        room.take(6)
        return value
    if kind is int:
        return _encode_int(value, room)
    if kind is float:
        room.take(32)
        return {"float": struct.pack(">d", value).hex()}
    if kind is str:
        room.take(8 + 12 * len(value) if not value.isascii() else 8 + 6 * len(value))
        return {"text": value.encode("utf-8", "surrogatepass").hex()} if _has_surrogate(value) else value
    if kind in (bytes, bytearray):
        room.take(32 + 2 * len(value))
        return {kind.__name__: value.hex()}
    if kind in (list, tuple):
        return _encode_list(value, room, depth)
    return _encode_numpy(value, room)


def _encode_int(value: int, room: _Room) -> Any:
    if -_WORD <= value < _WORD:
        room.take(21)
        return value
    room.take(16 + value.bit_length() // 4)
    return {"int": hex(value)}


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _encode_list(value: Any, room: _Room, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise NotExact("too deep")
    room.take(12 + len(value))
    items = [_encode(item, room, depth + 1) for item in value]
    return items if type(value) is list else {"tuple": items}


def _encode_numpy(value: Any, room: _Room) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        raise NotExact(f"a {type(value).__qualname__}")
    if not _DTYPE.fullmatch(value.dtype.str):
        raise NotExact(f"of type {value.dtype}")
    room.take(64 + 2 * value.nbytes + 21 * value.ndim)
    described = {"dtype": value.dtype.str, "bytes": value.tobytes().hex()}
    return {**described, "shape": list(value.shape)} if type(value) is numpy.ndarray else described


def decode(content: Any, depth: int = 0) -> Any:
    """Return the value that such JSON stands for; raises an error where it stands for none."""
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
