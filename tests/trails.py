"""The digest and the files of trails written from docs/format.md alone: what the library is compared with."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprokit.core.native import check_in_python

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIELDS = ("batch", "loss", "gradients", "parameters", "torch", "python", "numpy", "before", "buffers", "inputs")
FLAGS = dict(zip(FIELDS, (1, 2, 4, 8, 16, 32, 64, 128, 2048, 8192), strict=True))
PARTIAL, UNCHANGED, INPUTS_PARTIAL, INPUTS_SEVERAL = 256, 4096, 16384, 32768
UNSTEADY_GRADIENTS, UNSTEADY_PARAMETERS = 512, 1024


def mix(x: int) -> int:
    """The bijection of 64 bits under the digest."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def mix_word(x: int) -> int:
    """The bijection for words."""
    x = (x ^ x >> 30) * 0x85EBCA6B & MASK
    x = (x ^ x >> 27) * 0xC2B2AE35 & MASK
    return x ^ x >> 31


def salt(dtype: str, shape: Sequence[int]) -> int:
    """What stands for dtype and shape."""
    head = f"reprokit-tensor-1\0{dtype}\0{','.join(map(str, shape))}\0"
    return int.from_bytes(hashlib.sha256(head.encode()).digest()[:8], "little")


def digest_of_bytes(data: bytes, salted: int) -> int:
    """The digest of bytes under a salt."""
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return mix(sum(mix_word(word + (place + 1) * GOLDEN & MASK) for place, word in enumerate(words)) + salted & MASK)


def digest(data: bytes, dtype: str, shape: Sequence[int]) -> int:
    """The digest of a tensor."""
    return digest_of_bytes(data, salt(dtype, shape))


def list_digest(digests: Sequence[int]) -> int:
    """The digest of a list of digests."""
    return digest_of_bytes(struct.pack(f"<{len(digests)}Q", *digests), len(digests))


@dataclass
class Table:
    """A series, or a part of one with tensors of its own: a step is {"batch": 1, ...}, what is absent unknown."""

    name: str
    steps: list[dict[str, int]] = field(default_factory=list)
    tensors: list[tuple[Any, ...]] = field(default_factory=list)  # name, dtype, shape, and placement if it has one
    kept: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)  # gradients, parameters of a step
    parts: list[list[int]] = field(default_factory=list)  # of each step, the parameters of each placement
    kind: str = "SGD"
    first: int = 0
    facts: dict[str, Any] = field(default_factory=dict)  # more of the series' text


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 64)


def _chunk(kind: int, series: int, body: bytes, **fields: int) -> bytes:
    text = fields.pop("text", 0)
    values = [fields.get(name, 0) for name in ("first", "count", "kept")]
    head = struct.pack("<IHHQQII", 0x4B435254, kind, series, 64 + len(_padded(body)), *values)
    head += struct.pack("<QQ", text, check_in_python(body[:text]) if text else 0)
    return head + struct.pack("<QQ", check_in_python(head), 0) + _padded(body)


def _record(number: int, step: dict[str, int], parts: Sequence[int]) -> bytes:
    flags = sum(flag for name, flag in FLAGS.items() if name in step) | step.get("flags", 0)
    values = *(step.get(name, 0) for name in FIELDS), *parts
    body = struct.pack(f"<I{len(values)}Q", flags, *values)
    return struct.pack("<I", check_in_python(body, number) & 0xFFFFFFFF or 1) + body


def _kept(table: Table, kept: int = 16) -> bytes:
    size = 16 + 16 * len(table.tensors)
    body = bytearray(2 * kept * size)
    for step, (gradients, parameters) in table.kept.items():
        done = step - table.first
        digests = struct.pack(f"<{2 * len(table.tensors)}Q", *gradients, *parameters)
        slot = size * (done if done < kept else kept + done % kept)
        body[slot : slot + size] = struct.pack("<QQ", step + 1, check_in_python(digests, step + 1)) + digests
    return bytes(body)


def _chunks(number: int, table: Table) -> bytes:
    text: dict[str, Any] = {"name": table.name, "class": table.kind, "tensors": table.tensors, **table.facts}
    data, count = json.dumps(text).encode(), len(table.tensors)
    chunks = _chunk(1, number, data, first=table.first, count=count, text=len(data))
    if table.kept:
        chunks += _chunk(3, number, _kept(table), count=count, kept=16)
    parts = table.parts or [[]] * len(table.steps)
    steps = enumerate(zip(table.steps, parts, strict=True))
    records = [_record(table.first + index, step, some) for index, (step, some) in steps]
    for begin in range(0, len(records), 64):
        some = records[begin : begin + 64]
        fields = {"first": table.first + begin, "count": len(some), "kept": len(parts[begin])}
        chunks += _chunk(2, number, b"".join(some), **fields)
    return chunks


def write(
    directory: Path,
    tables: Sequence[Table],
    process: str = "0",
    incarnation: int = 0,
    version: int = 5,
    stepped: int = 0,
) -> Path:
    """A trail file of a process in the directory of a run's trails."""
    directory.mkdir(exist_ok=True, mode=0o700, parents=True)
    body = b"".join(_chunks(number, table) for number, table in enumerate(tables))
    head = struct.pack("<8sIIII256s", b"RKTRAIL", version, incarnation, 4711, 0, process.encode())
    head += struct.pack("<QQIIQQ", check_in_python(head), 512 + len(body), 0, 0, 0, stepped)
    path = directory / f"{check_in_python(process.encode()):016x}-{incarnation}.trail"
    path.write_bytes(head.ljust(512, b"\0") + body)
    return path
