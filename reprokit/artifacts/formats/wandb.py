"""The files that Weights & Biases writes (run-ID.wandb): what was logged, step by step, the configuration, the summary.

A file is a log of records as LevelDB has them, in blocks of 32 KiB, with CRC-32 in the place of CRC-32C; each record is
a message `Record` of wandb_internal.proto. Times, run ids, what is measured of the machine, and console output are
noise: see https://github.com/wandb/wandb and https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats.protobuf import BYTES, VARINT, Field, WireReader, signed
from reprokit.artifacts.sources import BytesSource, read_exactly
from reprokit.errors import ArtifactDamaged

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK, HEAD = 1 << 15, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
HISTORY, SUMMARY, CONFIG, EXIT = 2, 3, 5, 18  # fields of a record
AROUND = (16, 19, 200)  # fields that every record may have: control, its id, of which run
ITEM, REMOVED, STEP = 1, 2, 2  # fields of history and summary
KEY, NESTED, JSON = 1, 2, 16  # fields of an item
VOLATILE = ("_timestamp", "_runtime", "_wandb")  # keys that say when, how long and by what


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Each value of the history by its step, then configuration, summary and exit code as they were at the end."""
    last: dict[str, str] = {}
    number = others = 0
    for kind, wire, found in entries(source, limits):
        if kind == HISTORY:
            step, values = history(wire, found, number)
            number += 1
            yield from (_part(f"step {step}/{key}", key, values[key]) for key in sorted(values))
        elif kind in (SUMMARY, CONFIG):
            _update(last, "summary" if kind == SUMMARY else "config", wire, found)
        elif kind == EXIT:
            last["exit code"] = str(signed(wire.last(found.at, found.end, 1)))
        else:
            others += 1
    yield from (_part(name, name.partition("/")[2], last[name]) for name in sorted(last))
    yield Noise("records of the program, the machine and the console", str(others))


def _part(name: str, key: str, text: str) -> Part:
    return Noise(name, text) if key.startswith(VOLATILE) else Value(name, text)


def entries(source: Source, limits: Limits) -> Iterator[tuple[int, WireReader, Field]]:
    """Yield what each record holds: the number of its field, and where its message stands."""
    for record in records(source, limits):
        wire = WireReader(BytesSource(record), limits)
        for found in wire.fields(0, len(record)):
            if found.kind == BYTES and found.number not in AROUND:
                yield found.number, wire, found


def records(source: Source, limits: Limits) -> Iterator[bytes]:
    """Yield all records, whose sums are checked; they were put together from the pieces that blocks cut them into."""
    if source.read(0, len(MAGIC)) != MAGIC:
        raise ArtifactDamaged("it does not begin as a file of Weights & Biases")
    at, waiting = len(MAGIC), None
    while at < source.size:
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        head = read_exactly(source, at, HEAD)
        size, kind = int.from_bytes(head[4:6], "little"), head[6]
        if not size and not kind:  # the rest of a block that was made ahead
            at += left
            continue
        data = read_exactly(source, at + HEAD, size)
        if zlib.crc32(data, zlib.crc32(head[6:])) != int.from_bytes(head[:4], "little"):
            raise ArtifactDamaged(f"the record at byte {at} has another CRC-32 than it says")
        at += HEAD + size
        waiting = _joined(waiting, kind, data, limits)
        if kind in (FULL, LAST):
            yield bytes(waiting)
            waiting = None
    if waiting is not None:
        raise ArtifactDamaged("it ends within a record")


def _joined(waiting: bytearray | None, kind: int, data: bytes, limits: Limits) -> bytearray:
    if (kind in (FULL, FIRST)) != (waiting is None) or not FULL <= kind <= LAST:
        raise ArtifactDamaged("the pieces of a record do not follow each other")
    found = bytearray() if waiting is None else waiting
    found += data
    if len(found) > limits.text:
        raise ArtifactDamaged(f"a record has more than the {limits.text} bytes that are read")
    return found


def history(wire: WireReader, record: Field, number: int) -> tuple[int, dict[str, str]]:
    """Return the step of a line of the history, and its values as JSON; those without a step are counted."""
    step, values = number, {}
    for one in _fields(wire, record):
        if one.number == ITEM and one.kind == BYTES:
            key, text = _item(wire, one)
            values[key] = text
        elif one.number == STEP and one.kind == BYTES:
            step = next((signed(inner.value) for inner in _fields(wire, one) if inner.kind == VARINT), step)
    stated = values.pop("_step", "")
    return (int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 19 else step), values


def _item(wire: WireReader, item: Field) -> tuple[str, str]:
    """Return a key, of nested ones all with dots between, and its value as JSON."""
    keys, text = [], ""
    for one in _fields(wire, item):
        if one.kind == BYTES and one.number in (KEY, NESTED):
            keys.append(wire.content(one).decode("utf-8", "backslashreplace"))
        elif one.kind == BYTES and one.number == JSON:
            text = wire.content(one).decode("utf-8", "backslashreplace")
    return ".".join(keys), text


def _update(last: dict[str, str], place: str, wire: WireReader, record: Field) -> None:
    """Take in what was set, and forget what was removed."""
    for one in _fields(wire, record):
        if one.kind == BYTES and one.number in (ITEM, REMOVED):
            key, text = _item(wire, one)
            if one.number == ITEM:
                last[f"{place}/{key}"] = text
            else:
                last.pop(f"{place}/{key}", None)


def _fields(wire: WireReader, message: Field) -> Iterator[Field]:
    return wire.fields(message.at, message.end)
