"""TensorFlow's checkpoints: the index NAME.index, and its shards NAME.data-00000-of-00001 and so on beside it.

The shards are found by the name of the index, never by a name in a file.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from reprokit.core import dtypes
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Blob, Limits, Noise, Part, Source, TensorPart, Value
from reprokit.diff.formats import sstable, tensorflow_messages
from reprokit.diff.formats.messages import is_numeric
from reprokit.diff.formats.protobuf import BYTES, FIXED32, VARINT, WireReader, signed
from reprokit.diff.formats.sstable import crc32c, decoded, unmasked
from reprokit.diff.formats.tensorflow_messages import NAMES, TYPES
from reprokit.diff.sources import BytesSource, ChecksummedSource, blocks, lines, piece, read_exactly

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
ENDING = ".index"
MOST_SHARDS = 100_000
WRONG_SUM = "a tensor has the CRC-32C {:08x}, its index says {:08x}"
_LINE = re.compile(r'(\w+): (?:"(?:[^"\\]|\\.)*"|[-+.\w]+)')
TIMES = ("all_model_checkpoint_timestamps", "last_preserved_timestamp")


@dataclass(frozen=True)
class CheckpointEntry:
    """The index entry of a tensor."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: str = ""  # of a partitioned variable, whose slices have entries of their own
    more: str = ""  # other fields as text


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the header, the tensors in order of name, and unused bytes."""
    yield from CheckpointReader(source, limits).parts()


class CheckpointReader:
    """Reads an index and its shards."""

    def __init__(self, source: Source, limits: Limits):
        self._source, self._limits = source, limits
        self._shards: dict[int, Source | None] = {}
        self._count = 0
        self._big_endian = False
        self._used_ranges: dict[int, list[tuple[int, int]]] = {}

    def parts(self) -> Iterator[Part]:
        """Yield the header, then all entries of the index."""
        table = sstable.entries(self._source, self._limits)
        key, header = next(table, (b"none", b""))
        if key:
            raise ArtifactDamaged("it does not begin with its header")
        yield from self._header(header)
        for key, value in table:
            entry = _entry(key, value, self._limits)
            if entry.slices:
                yield Value(f"{entry.name}/slices", f"{_type(entry)} {entry.slices}{entry.more}")
            else:
                yield from self._tensor(entry)
        yield from self._rest()

    def _header(self, data: bytes) -> Iterator[Part]:
        walker = tensorflow_messages.walker(BytesSource(data), self._limits)
        for part in walker.message("(header)", "BundleHeaderProto"):
            if part.name == "(header)/num_shards" and isinstance(part, Value):
                self._count = int(part.text)
            self._big_endian |= part == Value("(header)/endianness", "1")
            yield part
        if not 0 < self._count <= MOST_SHARDS:
            raise ArtifactDamaged(f"it is said to have {self._count} shards")

    def _shard(self, number: int) -> Source | None:
        """Return a shard; None if the file does not exist."""
        if not 0 <= number < self._count:
            raise ArtifactDamaged(f"of {self._count} shards, number {number} is meant")
        if number not in self._shards:
            siblings = getattr(self._source, "beside", None)
            name = siblings.name[: -len(ENDING)] if siblings is not None and siblings.name.endswith(ENDING) else ""
            shard = f"{name}.data-{number:05d}-of-{self._count:05d}"
            self._shards[number] = siblings.open(shard) if siblings is not None and name else None
        return self._shards[number]

    def _tensor(self, entry: CheckpointEntry) -> Iterator[Part]:
        shard = self._shard(entry.shard)
        if entry.more:
            yield Value(f"{entry.name}/more", entry.more)
        if shard is None:
            place = f"in shard {entry.shard}, which is not there, with the CRC-32C {entry.crc:08x}"
            yield Value(entry.name, f"{_type(entry)}, {entry.size} bytes {place}")
            return
        data = piece(shard, entry.offset, entry.size)
        self._used_ranges.setdefault(entry.shard, []).append((entry.offset, entry.offset + entry.size))
        if TYPES.get(entry.dtype) == "string":
            yield from self._strings(entry, data)
        elif not is_numeric(NAMES.get(entry.dtype, "")):
            yield Value(f"{entry.name}/type", f"{_type(entry)} with the CRC-32C {entry.crc:08x}")
            yield Blob(entry.name, data)
        else:
            yield self._numbers(
                entry, ChecksummedSource(data, entry.crc, crc32c, f"{_escaped(entry.name)}: {WRONG_SUM}")
            )

    def _numbers(self, entry: CheckpointEntry, data: Source) -> TensorPart:
        name = NAMES[entry.dtype]
        if any(n < 0 for n in entry.shape) or dtypes.named(name).file_size(math.prod(entry.shape)) != entry.size:
            raise ArtifactDamaged(f"{entry.name[:200]!r} has another size than its type and shape need")
        return TensorPart(entry.name, name, entry.shape, data, big_endian=self._big_endian)

    def _strings(self, entry: CheckpointEntry, data: Source) -> Iterator[Part]:
        """Yield the elements of a string tensor: stored as lengths, their checksum, then the concatenated texts."""
        count = math.prod(entry.shape)
        if not 0 <= count <= min(self._limits.parts, entry.size):
            raise ArtifactDamaged(f"{entry.name[:200]!r} has {count} texts in {entry.size} bytes")
        lengths, start = _lengths(data, count)
        at = start
        if entry.shape or entry.name != OBJECT_GRAPH:
            yield Value(f"{entry.name}/type", _type(entry))
        for number, length in enumerate(lengths):
            name = f"{entry.name}/{number}" if entry.shape else entry.name
            if entry.name == OBJECT_GRAPH:
                walker = tensorflow_messages.walker(piece(data, at, length), self._limits)
                yield from walker.message(name, "TrackableObjectGraph")
            else:
                yield tensorflow_messages.string(name, data, at, length)
            at += length
        if at != entry.size:
            raise ArtifactDamaged(f"{entry.name[:200]!r} has {entry.size} bytes, its texts end at {at}")
        _check_strings(entry, data, lengths, start)

    def _rest(self) -> Iterator[Part]:
        """Yield the bytes of the shards that belong to no tensor; the offsets of tensors are noise."""
        for number, places in sorted(self._used_ranges.items()):
            shard = self._shards[number]
            assert shard is not None
            end = 0
            yield Noise(f"(places in shard {number})", str(hash(tuple(places))))
            for start, stop in sorted([*places, (shard.size, shard.size)]):
                if start > end:
                    yield Blob(f"(bytes of no tensor in shard {number})", piece(shard, end, start - end))
                end = max(end, stop)


def _type(entry: CheckpointEntry) -> str:
    return f"{TYPES.get(entry.dtype, f'type {entry.dtype}')} {list(entry.shape)}"


def _escaped(text: str) -> str:
    return text[:200].replace("{", "{{").replace("}", "}}")


def _entry(key: bytes, value: bytes, limits: Limits) -> CheckpointEntry:
    """Parse an entry of the index."""
    walker = tensorflow_messages.walker(BytesSource(value), limits)
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    shape: tuple[int, ...] = ()
    more, slices = "", []
    for field in walker.wire.fields(0, len(value)):
        if field.number in numbers and field.kind == (FIXED32 if field.number == 6 else VARINT):
            numbers[field.number] = signed(field.value)
        elif field.number == 2 and field.kind == BYTES:
            shape, text = tensorflow_messages.shape(walker, field.at, field.end)
            more += text
        elif field.number == 7 and field.kind == BYTES:
            slices.append(_slice(walker.wire, field.at, field.end))
        else:
            more += f" field {field.number} is {field.value}"
    dtype, shard, offset, size, crc = numbers.values()
    if offset < 0 or size < 0:
        raise ArtifactDamaged(f"a tensor has {size} bytes at {offset}")
    name = decoded(key) if key.startswith(b"\0") else key.decode("utf-8", "backslashreplace")
    return CheckpointEntry(name, dtype, shape, shard, offset, size, unmasked(crc & 0xFFFFFFFF), " ".join(slices), more)


def _slice(wire: WireReader, at: int, end: int) -> str:
    """Return a slice of a variable in Python's notation."""
    texts = []
    for extent in wire.fields(at, end):
        if extent.kind != BYTES or extent.number != 1:
            texts.append(f"field {extent.number} is {extent.value}")
            continue
        numbers = {
            item.number: signed(item.value) for item in wire.fields(extent.at, extent.end) if item.kind == VARINT
        }
        texts.append(f"{numbers.get(1, 0)}:{numbers[2]}" if 2 in numbers else ":")
    return f"[{', '.join(texts)}]"


def _lengths(data: Source, count: int) -> tuple[list[int], int]:
    """Return the lengths of texts, and the offset of the first one."""
    wire, lengths, at = WireReader(data, Limits()), [], 0
    for _ in range(count):
        length, at = wire.varint(at, data.size)
        lengths.append(length)
    if at + 4 + sum(lengths) > data.size:
        raise ArtifactDamaged("a tensor of texts is cut short")
    return lengths, at + 4


def _check_strings(entry: CheckpointEntry, data: Source, lengths: list[int], start: int) -> None:
    """Check the checksums of a string tensor: of the lengths as fixed-size numbers, and of all bytes."""
    crc = crc32c(b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths))
    stored = read_exactly(data, start - 4, 4)
    crc_of_all = crc32c(stored, crc)
    for block in blocks(data, start):
        crc_of_all = crc32c(block, crc_of_all)
    if unmasked(int.from_bytes(stored, "little")) != crc or crc_of_all != entry.crc:
        raise ArtifactDamaged(f"{entry.name[:200]!r} has another CRC-32C than its index says")


def state(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the fields of the file `checkpoint`, which lists the last checkpoints; their times are noise."""
    counts: Counter[str] = Counter()
    for line in lines(source, limits.text):
        text = line.strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise ArtifactDamaged(f"the line {text[:80]!r} is no field")
        name = f"{match[1]}/{counts[match[1]]}"
        counts[match[1]] += 1
        value = text.removeprefix(f"{match[1]}: ")
        yield Noise(name, value) if match[1] in TIMES else Value(name, value)
