"""Reads and writes files of numbers by their description in docs/format.md, apart from the product's reader."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

Line = dict[str, Any]
HEAD = 288
NO_EPOCH, NO_STEP = -1 << 31, -1 << 63
CODES = {"float16": ">e", "bfloat16": None, "float32": ">f", "float64": ">d", "int": ">q", "bool": ">?"}


def checked(rest: bytes) -> bytes:
    """A record with its check before it."""
    return struct.pack("<I", zlib.crc32(rest) or 1) + rest


def head(process: str = "0", incarnation: int = 0, pid: int = 4711) -> bytes:
    """The head of a file."""
    facts = struct.pack("<8sIII256s", b"RKNUMBER", 1, incarnation, pid, process.encode())
    return facts + struct.pack("<I8x", zlib.crc32(facts))


def series(number: int, kind: str = "loss", name: str = "loss", dtype: str = "float64") -> bytes:
    """The records that declare a series."""
    text = json.dumps([number, kind, name, dtype]).encode()
    return b"".join(checked(struct.pack("<II20s", 0, len(text) - at, text[at:])) for at in range(0, len(text), 20))


def number(value: float, step: int | None = 0, *, epoch: int | None = None, of: int = 1, lines: int = 1) -> bytes:
    """A record of a float64."""
    place = NO_EPOCH if epoch is None else epoch, NO_STEP if step is None else step
    return checked(struct.pack("<IIiqd", of, lines, *place, value))


def losses(values: Sequence[float], process: str = "0", pid: int = 4711) -> bytes:
    """A file with the losses of the steps from 0 on."""
    records = (number(value, step) for step, value in enumerate(values))
    return head(process, pid=pid) + series(1) + b"".join(records)


def of_run(run: Path) -> list[Line]:
    """All lines of metrics.jsonl and all numbers as such lines, those of each process in the order of writing."""
    path = run / "metrics.jsonl"
    text = path.read_text(encoding="ascii") if path.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    found: list[tuple[float, Line]] = [(line["n"], line) for line in lines]
    for file in sorted((run / "numbers").glob("*.numbers")):
        process, numbers = read(file.read_bytes())
        at = 0
        for before, line in numbers:  # of which each stands behind the one before
            behind = (i for i in range(at, len(found)) if found[i][1]["p"] == process and found[i][0] >= before)
            at = next(behind, len(found))
            found.insert(at, (before - 0.5, {**line, "p": process}))
            at += 1
    return [line for _, line in found]


def read(data: bytes) -> tuple[str, list[tuple[int, Line]]]:
    """The process of a file, and its numbers, each with the lines that were written before it."""
    process = data[20:276].rstrip(b"\0").decode()
    declared: dict[int, tuple[str, str, str]] = {}
    lines: list[tuple[int, Line]] = []
    text = b""
    for at in range(HEAD, len(data) // 32 * 32, 32):
        check, of, before, epoch, step = struct.unpack_from("<IIIiq", data, at)
        if check != (zlib.crc32(data[at + 4 : at + 32]) or 1):
            assert not any(data[at : at + 32])
        elif of == 0:
            text += data[at + 12 : at + 12 + min(before, 20)]
            if before <= 20:
                place, *facts = json.loads(text)
                declared[place], text = (facts[0], facts[1], facts[2]), b""
        else:
            kind, name, dtype = declared[of]
            line = {"k": kind, "name": name, "step": None if step == NO_STEP else step}
            line.update({"epoch": None if epoch == NO_EPOCH else epoch} if kind == "log" else {})
            lines.append((before, {**line, "value": value(dtype, data[at + 24 : at + 32][::-1])}))
    return process, lines


def value(dtype: str, bits: bytes) -> dict[str, Any]:
    """The VALUE with these big-endian bits."""
    code = CODES[dtype]
    size = 2 if code is None else struct.calcsize(code)
    assert not any(bits[: 8 - size])
    data = bits[8 - size :]
    decimal = struct.unpack(code or ">f", data if code else data + bytes(2))[0]
    if dtype in ("int", "bool"):
        return {"dtype": dtype, "decimal": decimal}
    shortest = float(str(numpy.dtype(dtype).type(decimal))) if code else decimal
    return {"dtype": dtype, "bits": data.hex(), "decimal": shortest if decimal - decimal == 0 else None}
