"""TFRecord files: TensorBoard's events, and any other records; when an event happened is noise.

See https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from reprokit.artifacts.decompression import GZIP, ZLIB, UnpackedSource
from reprokit.artifacts.elements import Blob, Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats import protobuf, tensorflow_messages
from reprokit.artifacts.formats.protobuf import signed
from reprokit.artifacts.formats.sstable import crc32c, unmasked
from reprokit.artifacts.sources import ChecksummedSource, SourceSlice, piece, read_exactly
from reprokit.errors import ArtifactDamaged

_HEAD, _FOOT = 12, 4  # length with its sum before each record, a sum behind it
OLDEST = 1e9  # seconds since 1970 of an event, at least
FEATURES = b"\n"  # field 1 of an Example, which has nothing else


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield each event by its step, each record by its number."""
    source = _unpacked(source, limits)
    found = records(source)
    first = next(found, None)
    if first is None:
        return
    found = itertools.chain([first], found)
    if _is_event(first.read(0, 23)):
        yield from _events(found, limits)
        return
    for number, record in enumerate(found):
        yield from _record(number, record, limits)


def _is_event(head: bytes) -> bool:
    """Return whether the first event says so, behind its time; CatBoost's has a step or a summary there."""
    (time,) = struct.unpack("<d", head[1:9]) if len(head) > 9 and head[0] == 0x09 else (0.0,)
    return head[9:] == b"\x1a\x0dbrain.Event:" or (OLDEST < time < 4 * OLDEST and head[9:10] in (b"\x10", b"\x2a"))


def _unpacked(source: Source, limits: Limits) -> Source:
    """Records may be compressed as a whole."""
    head = source.read(0, 12)
    if len(head) == 12 and crc32c(head[:8]) == unmasked(int.from_bytes(head[8:], "little")):
        return source
    if head.startswith(b"\x1f\x8b\x08"):
        return UnpackedSource(source, GZIP, limits)
    if head[:1] == b"x" and int.from_bytes(head[:2], "big") % 31 == 0:
        return UnpackedSource(source, ZLIB, limits)
    return source


def records(source: Source) -> Iterator[SourceSlice]:
    """Yield all records, whose sums are checked."""
    at = 0
    while at < source.size:
        head = read_exactly(source, at, _HEAD)
        length = int.from_bytes(head[:8], "little")
        if crc32c(head[:8]) != unmasked(int.from_bytes(head[8:], "little")):
            raise ArtifactDamaged(f"the length of the record at byte {at} has another CRC-32C than it says")
        record = piece(source, at + _HEAD, length)
        at += _HEAD + length
        stored = unmasked(int.from_bytes(read_exactly(source, at, _FOOT), "little"))
        ChecksummedSource(
            record, stored, crc32c, f"the record before byte {at} has another CRC-32C than it says"
        ).verify()
        at += _FOOT
        yield record


def _record(number: int, record: Source, limits: Limits) -> Iterator[Part]:
    """One record: the features of an Example where it is one, else its bytes."""
    head = record.read(0, 1)
    parts: list[Part] = []
    if head == FEATURES and record.size <= limits.text:
        try:
            parts = list(tensorflow_messages.walker(record, limits).message(str(number), _kind(record)))
        except ArtifactDamaged:
            parts = []
    yield from parts or [Blob(str(number), record)]


def _kind(record: Source) -> str:
    """Return whether it is an Example or one of sequences; both begin with features."""
    wire = protobuf.WireReader(record, Limits())
    numbers = {found.number for found in wire.fields(0, record.size)}
    if not numbers <= {1, 2}:
        raise ArtifactDamaged("it is no example")
    return "SequenceExample" if 2 in numbers else "Example"


def _events(records: Iterator[SourceSlice], limits: Limits) -> Iterator[Part]:
    """Yield what each event says, under its step and what it is about."""
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
