"""TFRecord files: TensorBoard's events, and any other records; when an event happened is noise.

See https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from reprokit.artifacts.decompression import GZIP, ZLIB, Unpacked
from reprokit.artifacts.elements import Blob, Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats import protobuf, tensorflow_messages
from reprokit.artifacts.formats.messages import Walker
from reprokit.artifacts.formats.protobuf import VARINT, signed
from reprokit.artifacts.formats.sstable import crc32c, unmasked
from reprokit.artifacts.sources import Slice, Summed, exactly, piece
from reprokit.errors import ArtifactDamaged

_HEAD, _FOOT = 12, 4  # length with its sum before each record, a sum behind it
FEATURES = b"\n"  # field 1 of an Example, which has nothing else


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Each event by its step, each record by its number."""
    source = _unpacked(source, limits)
    found = records(source)
    first = next(found, None)
    if first is None:
        return
    if _is_event(first):
        yield from _Events(limits).parts(first, found)
        return
    yield from _record(0, first, limits)
    for number, record in enumerate(found, 1):
        yield from _record(number, record, limits)


def _unpacked(source: Source, limits: Limits) -> Source:
    """Records may be compressed as a whole."""
    head = source.read(0, 12)
    if len(head) == 12 and crc32c(head[:8]) == unmasked(int.from_bytes(head[8:], "little")):
        return source
    if head.startswith(b"\x1f\x8b\x08"):
        return Unpacked(source, GZIP, limits)
    if head[:1] == b"x" and int.from_bytes(head[:2], "big") % 31 == 0:
        return Unpacked(source, ZLIB, limits)
    return source


def records(source: Source) -> Iterator[Slice]:
    """All records, whose sums are checked."""
    at = 0
    while at < source.size:
        head = exactly(source, at, _HEAD)
        length = int.from_bytes(head[:8], "little")
        if crc32c(head[:8]) != unmasked(int.from_bytes(head[8:], "little")):
            raise ArtifactDamaged(f"the length of the record at byte {at} has another CRC-32C than it says")
        record = piece(source, at + _HEAD, length)
        at += _HEAD + length
        stored = unmasked(int.from_bytes(exactly(source, at, _FOOT), "little"))
        Summed(record, stored, crc32c, f"the record before byte {at} has another CRC-32C than it says").verify()
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
    """Whether it is an Example or one of sequences; both begin with features."""
    wire = protobuf.Wire(record, Limits())
    numbers = {found.number for found in wire.fields(0, record.size)}
    if not numbers <= {1, 2}:
        raise ArtifactDamaged("it is no example")
    return "SequenceExample" if 2 in numbers else "Example"


def _is_event(record: Source) -> bool:
    """Whether it is the first event of a file, which says so; the time stands before."""
    return record.read(9, 14) == b"\x1a\x0dbrain.Event:"


class _Events:
    """The events of one file, each under its step and what it is about."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._names: Counter[str] = Counter()

    def parts(self, first: Slice, others: Iterator[Slice]) -> Iterator[Part]:
        """What each event says."""
        yield from self._event(first)
        for record in others:
            yield from self._event(record)

    def _event(self, record: Slice) -> Iterator[Part]:
        walker = tensorflow_messages.walker(record, self._limits)
        path = self._path(_step(walker))
        for part in walker.message("", "Event"):
            name = f"{path}/{part.name}"
            if part.name in ("wall_time", "source_metadata/writer"):
                yield Noise(name, part.text if isinstance(part, Value) else "")
            elif part.name != "step":
                yield replace(part, name=name)

    def _path(self, step: int) -> str:
        path = f"step {step}"
        self._names[path] += 1
        return path if self._names[path] == 1 else f"{path} ({self._names[path]})"


def _step(walker: Walker) -> int:
    step = 0
    for found in walker.wire.fields(0, walker.source.size):
        if found.number == 2 and found.kind == VARINT:
            step = signed(found.value)
    return step
