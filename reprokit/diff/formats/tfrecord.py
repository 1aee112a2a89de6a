"""Reads TFRecord files: events of TensorBoard, and other records; the times of events are noise.

See https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.decompression import GZIP, ZLIB, UnpackedSource
from reprokit.diff.elements import Blob, Limits, Noise, Part, Source, Value
from reprokit.diff.formats import protobuf, tensorflow_messages
from reprokit.diff.formats.protobuf import signed
from reprokit.diff.formats.sstable import crc32c, unmasked
from reprokit.diff.sources import ChecksummedSource, SourceSlice, piece, read_exactly

_HEADER, _FOOTER = 12, 4  # bytes around each record: length and its checksum, and the checksum of the data
EARLIEST = 1e9  # earliest time of an event, in seconds since 1970
FEATURES = b"\n"  # tag of field 1, with which an Example begins


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield events by step, other records by number."""
    source = _unpacked(source, limits)
    all_records = records(source)
    first = next(all_records, None)
    if first is None:
        return
    all_records = itertools.chain([first], all_records)
    if _is_event(first.read(0, 23)):
        yield from _events(all_records, limits)
        return
    for number, record in enumerate(all_records):
        yield from _record(number, record, limits)


def _is_event(head: bytes) -> bool:
    """Return whether a first record is an event: time, then file version (CatBoost: then a step or summary)."""
    (time,) = struct.unpack("<d", head[1:9]) if len(head) > 9 and head[0] == 0x09 else (0.0,)
    return head[9:] == b"\x1a\x0dbrain.Event:" or (EARLIEST < time < 4 * EARLIEST and head[9:10] in (b"\x10", b"\x2a"))


def _unpacked(source: Source, limits: Limits) -> Source:
    """Return the uncompressed source of a file that may be compressed as a whole."""
    head = source.read(0, 12)
    if len(head) == 12 and crc32c(head[:8]) == unmasked(int.from_bytes(head[8:], "little")):
        return source
    if head.startswith(b"\x1f\x8b\x08"):
        return UnpackedSource(source, GZIP, limits)
    if head[:1] == b"x" and int.from_bytes(head[:2], "big") % 31 == 0:
        return UnpackedSource(source, ZLIB, limits)
    return source


def records(source: Source) -> Iterator[SourceSlice]:
    """Yield all records after a check of their checksums."""
    at = 0
    while at < source.size:
        head = read_exactly(source, at, _HEADER)
        length = int.from_bytes(head[:8], "little")
        if crc32c(head[:8]) != unmasked(int.from_bytes(head[8:], "little")):
            raise ArtifactDamaged(f"the length of the record at byte {at} has another CRC-32C than it says")
        record = piece(source, at + _HEADER, length)
        at += _HEADER + length
        stored = unmasked(int.from_bytes(read_exactly(source, at, _FOOTER), "little"))
        ChecksummedSource(
            record, stored, crc32c, f"the record before byte {at} has another CRC-32C than it says"
        ).verify()
        at += _FOOTER
        yield record


def _record(number: int, record: Source, limits: Limits) -> Iterator[Part]:
    """Yield a record: the features of an Example, or its bytes."""
    head = record.read(0, 1)
    parts: list[Part] = []
    if head == FEATURES and record.size <= limits.text:
        try:
            parts = list(tensorflow_messages.walker(record, limits).message(str(number), _kind(record)))
        except ArtifactDamaged:
            parts = []
    yield from parts or [Blob(str(number), record)]


def _kind(record: Source) -> str:
    """Return the message type: Example or SequenceExample, which both begin with features."""
    wire = protobuf.WireReader(record, Limits())
    numbers = {field.number for field in wire.fields(0, record.size)}
    if not numbers <= {1, 2}:
        raise ArtifactDamaged("it is no example")
    return "SequenceExample" if 2 in numbers else "Example"


def _events(records: Iterator[SourceSlice], limits: Limits) -> Iterator[Part]:
    """Yield the values of each event below its step."""
    names: Counter[str] = Counter()
    for record in records:
        walker = tensorflow_messages.walker(record, limits)
        path = f"step {signed(walker.wire.last(0, record.size, 2))}"
        names[path] += 1
        path = path if names[path] == 1 else f"{path} ({names[path]})"
        for part in walker.message("", "Event"):
            name = f"{path}/{part.name}"
            if part.name in ("wall_time", "source_metadata/writer"):
                yield Noise(name, part.text if isinstance(part, Value) else "")
            elif part.name != "step":
                yield replace(part, name=name)
