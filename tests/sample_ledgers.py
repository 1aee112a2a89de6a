"""Files of ledgers written from docs/format.md alone: what the reader is given."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

NAME = f"{0:016x}-0"


def head(process: str, number: int = 0) -> bytes:
    """The head of a file."""
    data = struct.pack("<8sII256s", b"RKSAMPLE", 1, number, process.encode())
    return data + struct.pack("<I", zlib.crc32(data))


def entry(kind: int, form: int, number: int, first: int, count: int) -> bytes:
    return struct.pack("<BBHII", kind, form, number, first, count)


def text(kind: int, number: int, **facts: Any) -> bytes:
    """A loader or an optimizer."""
    data = json.dumps(facts).encode()
    return entry(kind, 0, number, 0, len(data)) + data


def block(entries: bytes, numbers: Sequence[int], first: int = 0, count: int = 1, **sizes: int) -> bytes:
    """A block, whose sizes may be told otherwise."""
    words = struct.pack(f"<{len(numbers)}I", *numbers)
    payload = zlib.compress(entries + b"".join(words[place::4] for place in range(4)))
    true = {"entries_said": len(entries), "numbers_said": len(words), "payload_said": len(payload)}
    told = (sizes.get(name, size) for name, size in true.items())
    facts = struct.pack("<QIIII", first, count, *told)
    return b"RKSB" + struct.pack("<I", zlib.crc32(facts + payload)) + facts + payload


def tail(entries: bytes, numbers: Sequence[int], first: int = 0) -> bytes:
    """What waits for a block."""
    words = struct.pack(f"<{len(numbers)}I", *numbers)
    start = struct.pack("<8sQQQ", b"RKSTAIL\x01", first, len(entries), len(words)).ljust(64, b"\0")
    return start + entries.ljust(16 << 10, b"\0") + words.ljust(48 << 10, b"\0")


DECLARED = text(4, 0, name="loader#0", sampler="RandomSampler", samples=6) + text(5, 0, name="optimizer#0")


def steps(batches: Sequence[Sequence[int]]) -> tuple[bytes, list[int]]:
    """Entries and numbers of steps that have a batch each, of one epoch."""
    entries = DECLARED
    for batch in batches:
        entries += entry(1, 1, 0, 0, len(batch)) + entry(2, 0, 0, 1, 0)
    return entries, [number for batch in batches for number in batch]


def ledger(*batches: Sequence[int], process: str = "0") -> bytes:
    """The file of a process with such steps."""
    return head(process) + block(*steps(batches))
