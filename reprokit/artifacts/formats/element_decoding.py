"""The elements of a tensor in a message: raw bytes, or a list of the field for their type."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from reprokit import dtypes
from reprokit.artifacts.elements import Part, Source, TensorPart, Value
from reprokit.artifacts.formats import protobuf
from reprokit.artifacts.formats.messages import LISTS, NUMBERS, Schema, Walker, below
from reprokit.artifacts.formats.protobuf import BYTES, VARINT, Field
from reprokit.artifacts.sources import Memory, piece
from reprokit.artifacts.tensors import MAX_RANK
from reprokit.dtypes import Dtype
from reprokit.errors import ArtifactDamaged

MOST_REPEATED = 1 << 20  # elements that a single value may stand for


@dataclass(frozen=True)
class TypedList:
    """A list of a message: of which type its numbers are, and the elements of which types stand there."""

    type: str
    dtypes: tuple[str, ...]


class Values:
    """What a message says of the elements of one tensor."""

    def __init__(self, walker: Walker, path: str):
        self.walker, self.path = walker, path
        self.raw: Field | None = None
        self.others: list[Field] = []  # fields that are shown as they are
        self._lists: dict[TypedList, list[Field]] = {}

    def add(self, listed: TypedList, found: Field) -> None:
        """A number of a list, or several that are packed."""
        self._lists.setdefault(listed, []).append(found)

    def rest(self, message: str, schema: Schema) -> Iterator[Part]:
        """The parts of the other fields."""
        for number, found in enumerate(self.others):
            kind = schema[message].get(found.number)
            if kind is None:
                yield from self.walker.unknown(below(self.path, f"field {found.number}"), found)
            elif kind.repeated and kind.type in NUMBERS:
                yield from self.walker.numbers(below(self.path, f"{kind.name}/{number}"), kind.type, [found])
            else:
                yield from self.walker.value(below(self.path, kind.name), kind.type, found)

    def parts(self, dtype: str, shape: tuple[int, ...], *, repeats: bool = False) -> Iterator[Part]:
        """The tensor; repeats: a single number may stand for all."""
        if any(length < 0 for length in shape):
            raise ArtifactDamaged(f"{self.path} has the shape {str(shape)[:80]}")
        if dtype == "string" or not known(dtype) or len(shape) > MAX_RANK:
            yield Value(self.path, f"{dtype} {list(shape)}")
            yield from self._as_they_are()
            return
        type_ = dtypes.named(dtype)
        if self.raw is not None:
            yield from self._raw(type_, shape)
            yield from self._as_they_are()
        else:
            yield from self._listed(type_, shape, repeats)

    def beside(self, data: Source, dtype: str, shape: tuple[int, ...]) -> Iterator[Part]:
        """The tensor whose bytes stand elsewhere."""
        if not known(dtype) or len(shape) > MAX_RANK or any(length < 0 for length in shape):
            raise ArtifactDamaged(f"{self.path} of {dtype} {str(list(shape))[:80]} cannot stand in a file beside")
        yield self._tensor(dtypes.named(dtype), shape, data)
        yield from self._as_they_are()

    def _raw(self, dtype: Dtype, shape: tuple[int, ...]) -> Iterator[Part]:
        assert self.raw is not None
        data = piece(self.walker.source, self.raw.at, self.raw.value)
        self.raw = None
        yield self._tensor(dtype, shape, data)

    def _tensor(self, dtype: Dtype, shape: tuple[int, ...], data: Source) -> Part:
        if dtype.file_size(math.prod(shape)) != data.size:
            raise ArtifactDamaged(f"{self.path} of {dtype.name} {str(list(shape))[:80]} has {data.size} bytes")
        return TensorPart(self.path, dtype.name, shape, data)

    def _listed(self, dtype: Dtype, shape: tuple[int, ...], repeats: bool) -> Iterator[Part]:
        lists = [(listed.type, fields) for listed, fields in self._lists.items()]
        if len(lists) > 1 or any(dtype.name not in listed.dtypes for listed in self._lists):
            raise ArtifactDamaged(f"{self.path} has its elements in several ways, or not where {dtype.name} stands")
        data = self._elements(dtype, *lists[0]) if lists else Memory(b"")
        count, unit = math.prod(shape), dtype.file_size(1)
        if not repeats or data.size == dtype.file_size(count):
            yield self._tensor(dtype, shape, data)
        elif data.size <= unit and count <= MOST_REPEATED:
            yield TensorPart(
                self.path, dtype.name, shape, Memory(data.read(0, unit) or bytes(unit)), 0, (0,) * len(shape)
            )
        else:
            yield Value(f"{self.path}/shape", str(list(shape)))
            yield TensorPart(f"{self.path}/values", dtype.name, (data.size // unit,), data)

    def _elements(self, dtype: Dtype, type_: str, fields: list[Field]) -> Source:
        """The bytes of the elements that a list stands for."""
        if type_ in LISTS:
            return self._fixed(LISTS[type_][1], type_, fields)
        size = 1 if dtype.packed else dtype.element_size
        mask = (1 << 8 * size) - 1
        data = bytearray()
        for found in fields:
            numbers = protobuf.packed_varints(self.walker.wire, found) if found.kind == BYTES else (found.value,)
            if found.kind not in (BYTES, VARINT):
                raise ArtifactDamaged(f"{self.path} has elements of another type")
            for number in numbers:
                data += self._narrow(number, dtype, mask).to_bytes(size, "little")
            if len(data) > size * protobuf.MOST_NUMBERS:
                raise ArtifactDamaged(f"{self.path} has more elements than are read in this way")
        return Memory(bytes(data))

    def _narrow(self, number: int, dtype: Dtype, mask: int) -> int:
        """The bits of an element, which a list may hold in a wider number."""
        negative = dtype.kind == dtypes.SIGNED and number >= 1 << 63 and number | mask >> 1 == (1 << 64) - 1
        if number > mask and not negative:
            raise ArtifactDamaged(f"{self.path} has an element {number}, which is no {dtype.name}")
        return number & mask

    def _fixed(self, size: int, type_: str, fields: list[Field]) -> Source:
        if len(fields) == 1 and fields[0].kind == BYTES:
            return piece(self.walker.source, fields[0].at, fields[0].value)
        if any(found.kind != NUMBERS[type_][0] for found in fields):
            raise ArtifactDamaged(f"{self.path} has elements of another type")
        return Memory(b"".join(found.value.to_bytes(size, "little") for found in fields))

    def _as_they_are(self) -> Iterator[Part]:
        """Elements of no type that can be compared as numbers, one by one."""
        if self.raw is not None:
            yield self.walker.text(below(self.path, "content"), self.raw, is_text=False)
        for listed, fields in self._lists.items():
            if listed.type != "bytes":
                yield from self.walker.numbers(below(self.path, f"{listed.type} values"), listed.type, fields)
                continue
            for number, found in enumerate(fields):
                yield from self.walker.value(below(self.path, str(number)), "bytes", found)


def known(dtype: str) -> bool:
    """Whether elements of this type are compared as numbers."""
    try:
        dtypes.named(dtype)
    except ArtifactDamaged:
        return False
    return True
