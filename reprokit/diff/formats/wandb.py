"""Reads the files of Weights & Biases (run-ID.wandb): logged values by step, configuration, and summary.

A file is a log of records in the format of LevelDB, in blocks of 32 KiB, but with CRC-32 instead of CRC-32C. Each
record is a message `Record` of wandb_internal.proto. Times, run ids, system metrics and console output are noise: see
https://github.com/wandb/wandb and https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Noise, Part, Source, Value
from reprokit.diff.formats.protobuf import BYTES, VARINT, Field, WireReader, signed
from reprokit.diff.sources import BytesSource, read_exactly

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK, HEAD = 1 << 15, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
HISTORY, SUMMARY, CONFIG, EXIT = 2, 3, 5, 18  # fields of a record
AROUND = (16, 19, 200)  # fields that each record may have: control, id, run
ITEM, REMOVED, STEP = 1, 2, 2  # fields of history and summary
KEY, NESTED, JSON = 1, 2, 16  # fields of an item
VOLATILE = ("_timestamp", "_runtime", "_wandb")  # prefixes of keys for times and versions


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of the history by step, then the final configuration, summary and exit code."""
    last: dict[str, str] = {}
    number = other_records = 0
    for kind, wire, field in entries(source, limits):
        if kind == HISTORY:
            step, values = history(wire, field, number)
            number += 1
            yield from (_part(f"step {step}/{key}", key, values[key]) for key in sorted(values))
        elif kind in (SUMMARY, CONFIG):
            _update(last, "summary" if kind == SUMMARY else "config", wire, field)
        elif kind == EXIT:
            last["exit code"] = str(signed(wire.last(field.at, field.end, 1)))
        else:
            other_records += 1
    yield from (_part(name, name.partition("/")[2], last[name]) for name in sorted(last))
    yield Noise("records of the program, the machine and the console", str(other_records))


def _part(name: str, key: str, text: str) -> Part:
    return Noise(name, text) if key.startswith(VOLATILE) else Value(name, text)


def entries(source: Source, limits: Limits) -> Iterator[tuple[int, WireReader, Field]]:
    """Yield the message in each record: the number of its field, the reader, and the field."""
    for record in records(source, limits):
        wire = WireReader(BytesSource(record), limits)
        for field in wire.fields(0, len(record)):
            if field.kind == BYTES and field.number not in AROUND:
                yield field.number, wire, field


def records(source: Source, limits: Limits) -> Iterator[bytes]:
    """Yield all records, reassembled from their pieces in blocks, with their checksums checked."""
    if source.read(0, len(MAGIC)) != MAGIC:
        raise ArtifactDamaged("it does not begin as a file of Weights & Biases")
    at, pending = len(MAGIC), None
    while at < source.size:
        rest_of_block = BLOCK - at % BLOCK
        if rest_of_block < HEAD:
            at += rest_of_block
            continue
        head = read_exactly(source, at, HEAD)
        size, kind = int.from_bytes(head[4:6], "little"), head[6]
        if not size and not kind:  # the unused rest of a preallocated block
            at += rest_of_block
            continue
        data = read_exactly(source, at + HEAD, size)
        if zlib.crc32(data, zlib.crc32(head[6:])) != int.from_bytes(head[:4], "little"):
            raise ArtifactDamaged(f"the record at byte {at} has another CRC-32 than it says")
        at += HEAD + size
        pending = _joined(pending, kind, data, limits)
        if kind in (FULL, LAST):
            yield bytes(pending)
            pending = None
    if pending is not None:
        raise ArtifactDamaged("it ends within a record")


def _joined(pending: bytearray | None, kind: int, data: bytes, limits: Limits) -> bytearray:
    if (kind in (FULL, FIRST)) != (pending is None) or not FULL <= kind <= LAST:
        raise ArtifactDamaged("the pieces of a record do not follow each other")
    joined = bytearray() if pending is None else pending
    joined += data
    if len(joined) > limits.text:
        raise ArtifactDamaged(f"a record has more than the {limits.text} bytes that are read")
    return joined


def history(wire: WireReader, record: Field, number: int) -> tuple[int, dict[str, str]]:
    """Return step and JSON values of a history record; a record without a step gets `number`."""
    step, values = number, {}
    for field in _fields(wire, record):
        if field.number == ITEM and field.kind == BYTES:
            key, text = _item(wire, field)
            values[key] = text
        elif field.number == STEP and field.kind == BYTES:
            step = next((signed(inner.value) for inner in _fields(wire, field) if inner.kind == VARINT), step)
    stated = values.pop("_step", "")
    return (int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 19 else step), values


def _item(wire: WireReader, item: Field) -> tuple[str, str]:
    """Return the key of an item (nested keys joined by dots), and its value as JSON."""
    keys, text = [], ""
    for field in _fields(wire, item):
        if field.kind == BYTES and field.number in (KEY, NESTED):
            keys.append(wire.content(field).decode("utf-8", "backslashreplace"))
        elif field.kind == BYTES and field.number == JSON:
            text = wire.content(field).decode("utf-8", "backslashreplace")
    return ".".join(keys), text


def _update(last: dict[str, str], group: str, wire: WireReader, record: Field) -> None:
    """Apply the updated and removed items of a record."""
    for field in _fields(wire, record):
        if field.kind == BYTES and field.number in (ITEM, REMOVED):
            key, text = _item(wire, field)
            if field.number == ITEM:
                last[f"{group}/{key}"] = text
            else:
                last.pop(f"{group}/{key}", None)


def _fields(wire: WireReader, message: Field) -> Iterator[Field]:
    return wire.fields(message.at, message.end)
