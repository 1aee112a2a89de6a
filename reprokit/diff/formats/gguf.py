"""Reads GGUF, the models of llama.cpp: metadata by key, tensors by name; quantized blocks are compared as bytes.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator

from reprokit.core import dtypes
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Part, Source, TensorPart, Value
from reprokit.diff.sources import ForwardReader

ALIGNMENT = "general.alignment"
TEXT, LIST = 8, 9  # value types in the metadata; all others are numbers of the following types
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MANY = 256  # length from which a list of numbers is compared as a tensor
LISTED = {"B": "uint8", "b": "int8", "H": "uint16", "h": "int16", "I": "uint32", "i": "int32", "f": "float32"} | {
    "?": "bool", "Q": "uint64", "q": "int64", "d": "float64",
}  # fmt: skip
MOST_DIMENSIONS = 4
PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16"}
# Quantized types: elements and bytes per block (ggml-common.h).
BLOCKS = {
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84), 11: (256, 110),
    12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98),
    19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 29: (256, 56), 34: (256, 54),
    35: (256, 66), 39: (32, 17),
}  # fmt: skip


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the metadata, then the tensors in the order of the file."""
    file = ForwardReader(source, "it")
    file.room = limits.header
    _, version, tensors, entries = struct.unpack("<4sIQQ", file.read(24))
    if version not in (2, 3):
        raise ArtifactDamaged(f"version {version} of its format is not read")
    if max(tensors, entries) > limits.parts:
        raise ArtifactDamaged(f"it is said to have {tensors} tensors and {entries} entries")
    alignment = 32
    for _ in range(entries):
        key, (kind,) = _text(file), struct.unpack("<I", file.read(4))
        for part in _value(file, key, kind, limits):
            yield part
            if key == ALIGNMENT and isinstance(part, Value) and part.text.isdecimal():
                alignment = int(part.text)
    if not 0 < alignment <= 1 << 20:
        raise ArtifactDamaged(f"its tensors are said to be aligned to {alignment} bytes")
    facts = [_facts(file) for _ in range(tensors)]
    start = -(-file.at // alignment) * alignment
    yield from (_tensor(source, start, *fact) for fact in facts)


def _text(file: ForwardReader) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(length).decode("utf-8", "backslashreplace")


def _value(file: ForwardReader, key: str, kind: int, limits: Limits) -> Iterator[Part]:
    if kind == TEXT:
        yield Value(key, json.dumps(_text(file)))
    elif kind == LIST:
        inner, count = struct.unpack("<IQ", file.read(12))
        yield from _list(file, key, inner, count, limits)
    else:
        yield Value(key, str(_numbers(file, kind, 1)[0]))


def _list(file: ForwardReader, key: str, kind: int, count: int, limits: Limits) -> Iterator[Part]:
    yield Value(key, f"list of {count}")
    if kind == TEXT and count <= limits.parts:
        yield from (Value(f"{key}/{number}", json.dumps(_text(file))) for number in range(count))
    elif kind in NUMBERS and count >= MANY:
        letter = NUMBERS[kind]
        data = file.skip(count * struct.calcsize(f"<{letter}"))
        yield TensorPart(f"{key}/numbers", LISTED[letter], (count,), data)
    elif kind in NUMBERS:
        yield from (Value(f"{key}/{at}", str(item)) for at, item in enumerate(_numbers(file, kind, count)))
    else:
        raise ArtifactDamaged(f"{key[:80]!r} is a list of {count} values of type {kind}, which is not read")


def _numbers(file: ForwardReader, kind: int, count: int) -> tuple[float | int | bool, ...]:
    if kind not in NUMBERS:
        raise ArtifactDamaged(f"a value is of type {kind}, which is not known")
    layout = struct.Struct(f"<{count}{NUMBERS[kind]}")
    return layout.unpack(file.read(layout.size))


def _facts(file: ForwardReader) -> tuple[str, tuple[int, ...], int, int]:
    """Read a tensor's name, dimensions (innermost first), type and offset."""
    name, (rank,) = _text(file), struct.unpack("<I", file.read(4))
    if rank > MOST_DIMENSIONS:
        raise ArtifactDamaged(f"{name[:80]!r} is said to have {rank} dimensions")
    *dimensions, kind, offset = struct.unpack(f"<{rank}QIQ", file.read(8 * rank + 12))
    return name, tuple(dimensions), kind, offset


def _tensor(source: Source, start: int, name: str, dimensions: tuple[int, ...], kind: int, offset: int) -> TensorPart:
    dtype, shape = PLAIN.get(kind), dimensions[::-1]
    if dtype is None:
        elements, size = BLOCKS.get(kind, (0, 0))
        if not elements or not dimensions or dimensions[0] % elements:
            raise ArtifactDamaged(f"{name[:80]!r} is of type {kind}, which is not known, or has another length")
        dtype, shape = f"raw{size}", (*shape[:-1], shape[-1] // elements)
    if start + offset + dtypes.named(dtype).file_size(math.prod(shape)) > source.size:
        raise ArtifactDamaged(f"{name[:80]!r} goes beyond the end of the file")
    return TensorPart(name, dtype, shape, source, start + offset)
