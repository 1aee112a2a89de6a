"""Reads messages of Protocol Buffers by a schema: every value by its path, tensors in place.

A schema is a text with one message per line: its name, then NUMBER=FIELD:TYPE for each field. TYPE* is repeated,
TYPE*KEY is repeated and named by the field KEY, KEY|OTHER if the first may be empty, KEY~ if their order has no
meaning; {KEY:VALUE} is a map.
Fields that are not in the schema are compared as raw values.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from reprokit.core import dtypes
from reprokit.core.dtypes import Dtype
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Blob, Limits, Noise, Part, Source, TensorPart, Value
from reprokit.diff.formats import protobuf
from reprokit.diff.formats.pickle_nodes import exact_float
from reprokit.diff.formats.protobuf import BYTES, FIXED32, FIXED64, VARINT, Field, WireReader
from reprokit.diff.sources import BytesSource, piece
from reprokit.diff.tensors import MAX_RANK

DEEPEST = 100  # nested messages, the limit of Protocol Buffers itself
LONGEST_TEXT = 1 << 16  # bytes of the longest text or bytes shown as a value
LONGEST_KEY = 4096
SHORT_LIST = 64  # numbers of a list shown as one value; longer lists are tensors
_FIELD = re.compile(r"([0-9]+)=(\w+):(?:\{(\w+):([\w.]+)\}|([\w.]+)(\*?)([\w.|]*)(~?))")


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """The schema of one field."""

    name: str
    type: str  # a scalar type, or the name of a message
    repeated: bool = False
    keys: tuple[str, ...] = ()  # for repeated messages: the fields that name them
    map_key: str = ""  # for maps: the type of the keys
    unordered: bool = False


Schema: TypeAlias = Mapping[str, Mapping[int, FieldSchema]]
Special: TypeAlias = Callable[["MessageWalker", str, int, int], Iterator[Part]]


def schema(text: str) -> Schema:
    """Parse a schema."""
    lines = re.sub(r"\n\s+", " ", text.strip()).splitlines()
    return {line.split(" ")[0]: dict(map(_kind, line.split(" ")[1:])) for line in lines}


def _kind(text: str) -> tuple[int, FieldSchema]:
    match = _FIELD.fullmatch(text)
    assert match is not None, text
    number, name, map_key, map_value, type_, star, keys, unordered = match.groups()
    names = tuple(keys.split("|")) if keys else ()
    return int(number), FieldSchema(
        name, map_value or type_, bool(star or map_key), names, map_key or "", bool(unordered)
    )


NUMBERS: dict[str, tuple[int, Callable[[int], str]]] = {
    **dict.fromkeys(("int32", "int64", "enum"), (VARINT, lambda bits: str(protobuf.signed(bits)))),
    **dict.fromkeys(("uint32", "uint64"), (VARINT, str)),
    **dict.fromkeys(("sint32", "sint64"), (VARINT, lambda bits: str(protobuf.zigzag(bits)))),
    "bool": (VARINT, lambda bits: {0: "false", 1: "true"}.get(bits, str(bits))),
    "float": (FIXED32, lambda bits: exact_float(protobuf.single(bits))),
    "double": (FIXED64, lambda bits: exact_float(protobuf.double(bits))),
    "fixed32": (FIXED32, str),
    "fixed64": (FIXED64, str),
    "dtype": (VARINT, str),
}
LISTS = {"float": ("float32", 4), "double": ("float64", 8), "fixed32": ("uint32", 4), "fixed64": ("uint64", 8)}


@dataclass
class MessageWalker:
    """Yields the parts of the messages in a source."""

    source: Source
    limits: Limits
    schema: Schema
    special: Mapping[str, Special] = field(default_factory=dict)  # functions that read some messages, by name
    types: Mapping[int, str] = field(default_factory=dict)  # names of the element types, by number
    depth: int = 0

    def __post_init__(self) -> None:
        self.wire = WireReader(self.source, self.limits)
        self.deepest = min(DEEPEST, self.limits.nesting)

    def message(self, path: str, name: str, at: int = 0, end: int | None = None) -> Iterator[Part]:
        """Yield the parts of a message, by default the whole source."""
        end = self.source.size if end is None else end
        if name in self.special:
            yield from self.special[name](self, path, at, end)
            return
        if self.depth >= self.deepest:
            raise ArtifactDamaged(f"its messages are nested more than {self.deepest} deep")
        self.depth += 1
        if at == end and path:
            yield Value(path, "{}")
        yield from self._fields(path, self.schema[name], at, end)
        self.depth -= 1

    def _fields(self, path: str, kinds: Mapping[int, FieldSchema], at: int, end: int) -> Iterator[Part]:
        lists: dict[int, list[Field]] = {}
        repeated = _RepeatedFields()
        for field_ in self.wire.fields(at, end):
            kind = kinds.get(field_.number)
            if kind is None:
                yield from self.unknown(below(path, f"field {field_.number}"), field_)
            elif kind.repeated and kind.type in NUMBERS and not kind.map_key:
                lists.setdefault(field_.number, []).append(field_)
            else:
                yield from self._field_parts(path, kind, field_, repeated)
        for number, fields in lists.items():
            yield from self.numbers(below(path, kinds[number].name), kinds[number].type, fields)
        yield from repeated.orders(path)

    def _field_parts(self, path: str, kind: FieldSchema, field_: Field, repeated: _RepeatedFields) -> Iterator[Part]:
        if kind.map_key:
            yield from self._entry(below(path, kind.name), kind, field_)
            return
        name = below(path, kind.name)
        if kind.keys:
            key = self.key(kind, field_) if field_.kind == BYTES else ""
            repeated.add(kind, key)
            name = below(name, key)
        elif kind.repeated:
            name = below(name, str(repeated.next(kind.name)))
        yield from self.value(name, kind.type, field_)

    def value(self, name: str, type_: str, field_: Field) -> Iterator[Part]:
        """Yield the parts of a field as a value of this type."""
        if type_ in NUMBERS and field_.kind == NUMBERS[type_][0]:
            text = NUMBERS[type_][1](field_.value)
            yield Value(name, self.types.get(field_.value, text) if type_ == "dtype" else text)
        elif field_.kind != BYTES or type_ in NUMBERS:
            yield from self.unknown(name, field_)
        elif type_ in ("string", "bytes"):
            yield self.text(name, field_, is_text=type_ == "string")
        else:
            yield from self.message(name, type_, field_.at, field_.end)

    def text(self, name: str, field_: Field, *, is_text: bool) -> Part:
        """Return a text or bytes: short ones as a Python literal, which is unambiguous, long ones as a blob."""
        if field_.value > LONGEST_TEXT:
            return Blob(name, piece(self.source, field_.at, field_.value))
        return Value(name, python_literal(self.wire.content(field_), is_text=is_text))

    def unknown(self, name: str, field_: Field) -> Iterator[Part]:
        """Yield the raw value of a field that is not in the schema."""
        if field_.kind == BYTES:
            yield self.text(name, field_, is_text=False)
        else:
            yield Value(name, f"{field_.value} of {8 * protobuf.SIZES.get(field_.kind, 8)} bits")

    def _entry(self, path: str, kind: FieldSchema, entry: Field) -> Iterator[Part]:
        """Yield the parts of a map entry."""
        if entry.kind != BYTES:
            yield from self.unknown(path, entry)
            return
        fields = list(itertools.islice(self.wire.fields(entry.at, entry.end), 65))
        if len(fields) > 64:
            raise ArtifactDamaged("an entry of a map has more fields than a key and a value")
        key = next((self.plain(kind.map_key, field_) for field_ in reversed(fields) if field_.number == 1), "(none)")
        name = below(path, key)
        if not any(field_.number == 2 for field_ in fields):
            yield Value(name, "(none)")
        for field_ in fields:
            if field_.number == 2:
                yield from self.value(name, kind.type, field_)
            elif field_.number != 1:
                yield from self.unknown(below(name, f"field {field_.number}"), field_)

    def plain(self, type_: str, field_: Field) -> str:
        """Return the key of a map or message as text."""
        if type_ == "string" and field_.kind == BYTES and field_.value <= LONGEST_KEY:
            return self.wire.content(field_).decode("utf-8", "backslashreplace")
        if type_ in NUMBERS and field_.kind == NUMBERS[type_][0]:
            return NUMBERS[type_][1](field_.value)
        return f"(key at byte {field_.at})"

    def key(self, kind: FieldSchema, field_: Field) -> str:
        """Return the name of a repeated message by its key fields; empty if it has none."""
        for keys in kind.keys:
            name = self._name_at(kind.type, keys.split("."), field_.at, field_.end)
            if name:
                return name
        return ""

    def _name_at(self, message: str, names: list[str], at: int, end: int) -> str:
        kinds = self.schema[message]
        for part in self.wire.fields(at, end):
            kind = kinds.get(part.number)
            if kind is None or kind.name != names[0] or part.kind != BYTES:
                continue
            return (
                self.plain("string", part)
                if len(names) == 1
                else self._name_at(kind.type, names[1:], part.at, part.end)
            )
        return ""

    def numbers(self, name: str, type_: str, fields: list[Field]) -> Iterator[Part]:
        """Yield the numbers of a repeated field, packed or not."""
        if type_ in LISTS and len(fields) == 1 and fields[0].kind == BYTES:
            yield from self._packed(name, type_, fields[0])
            return
        bits: list[int] = []
        for field_ in fields:
            if field_.kind == NUMBERS[type_][0]:
                bits.append(field_.value)
            elif field_.kind == BYTES and NUMBERS[type_][0] == VARINT:
                bits += protobuf.packed_varints(self.wire, field_)
            else:
                yield from self.unknown(name, field_)
        yield from self._list(name, type_, bits)

    def _packed(self, name: str, type_: str, field_: Field) -> Iterator[Part]:
        dtype, size = LISTS[type_]
        if field_.value % size:
            yield from self.unknown(name, field_)
        elif field_.value <= size * SHORT_LIST:
            data = self.wire.content(field_)
            yield from self._list(
                name, type_, [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]
            )
        else:
            yield TensorPart(name, dtype, (field_.value // size,), piece(self.source, field_.at, field_.value))

    def _list(self, name: str, type_: str, bits: list[int]) -> Iterator[Part]:
        if len(bits) <= SHORT_LIST:
            yield Value(name, f"[{', '.join(map(NUMBERS[type_][1], bits))}]")
            return
        dtype, size = LISTS.get(type_, ("uint64" if type_.startswith("u") else "int64", 8))
        data = b"".join(number.to_bytes(size, "little") for number in bits)
        yield TensorPart(name, dtype, (len(bits),), BytesSource(data))


class _RepeatedFields:
    """Numbers the repeated fields without names, and digests the order of those with names."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._orders: dict[FieldSchema, hashlib._Hash] = {}

    def next(self, name: str) -> int:
        """Return the next number of a field."""
        self._counts[name] += 1
        return self._counts[name] - 1

    def add(self, kind: FieldSchema, key: str) -> None:
        """Add a named element of a field."""
        self._counts[kind.name] += 1
        self._orders.setdefault(kind, hashlib.sha256()).update(key.encode("utf-8", "surrogateescape") + b"\0")

    def orders(self, path: str) -> Iterator[Part]:
        """Yield the digests of the order of named elements."""
        for kind, digest in self._orders.items():
            if (count := self._counts[kind.name]) > 1:
                name, text = below(path, f"{kind.name}/(order)"), f"{count} as {digest.hexdigest()[:32]}"
                yield Noise(name, text) if kind.unordered else Value(name, text)


def below(path: str, name: str) -> str:
    """Return the path of a name below a path."""
    return f"{path}/{name}" if path else name


def python_literal(data: bytes, *, is_text: bool = True) -> str:
    """Return a text or bytes as a Python literal."""
    if is_text:
        try:
            return repr(data.decode("utf-8"))
        except UnicodeDecodeError:
            pass
    return repr(data)


MOST_REPEATED = 1 << 20  # elements of a tensor that is stored as a single value


@dataclass(frozen=True)
class TypedList:
    """A repeated field that stores elements: the type of its numbers, and the dtypes of tensors that use it."""

    type: str
    dtypes: tuple[str, ...]


class TensorFields:
    """The fields of a tensor message that store its elements: raw bytes, or lists by type."""

    def __init__(self, walker: MessageWalker, path: str):
        self.walker, self.path = walker, path
        self.raw: Field | None = None
        self.other_fields: list[Field] = []  # fields that store no elements
        self._lists: dict[TypedList, list[Field]] = {}

    def fields(
        self, at: int, end: int, raw: int, lists: Mapping[int, TypedList], yielded: Mapping[int, tuple[int, ...]]
    ) -> Iterator[Field]:
        """Yield the requested fields (number: wire types); keep the fields of raw bytes, of lists, and the others."""
        for field_ in self.walker.wire.fields(at, end):
            if field_.kind in yielded.get(field_.number, ()):
                yield field_
            elif field_.number == raw and field_.kind == BYTES and self.raw is None:
                self.raw = field_
            elif field_.number in lists:
                self._lists.setdefault(lists[field_.number], []).append(field_)
            else:
                self.other_fields.append(field_)

    def rest(self, message: str, schema: Schema) -> Iterator[Part]:
        """Yield the parts of the fields that store no elements."""
        for number, field_ in enumerate(self.other_fields):
            kind = schema[message].get(field_.number)
            if kind is None:
                yield from self.walker.unknown(below(self.path, f"field {field_.number}"), field_)
            elif kind.repeated and kind.type in NUMBERS:
                yield from self.walker.numbers(below(self.path, f"{kind.name}/{number}"), kind.type, [field_])
            else:
                yield from self.walker.value(below(self.path, kind.name), kind.type, field_)

    def parts(self, dtype: str, shape: tuple[int, ...], *, repeats: bool = False) -> Iterator[Part]:
        """Yield the tensor; with `repeats` a single number may be stored for all elements."""
        if any(length < 0 for length in shape):
            raise ArtifactDamaged(f"{self.path} has the shape {str(shape)[:80]}")
        if dtype == "string" or not is_numeric(dtype) or len(shape) > MAX_RANK:
            yield Value(self.path, f"{dtype} {list(shape)}")
            yield from self._raw_lists()
            return
        type_ = dtypes.named(dtype)
        if self.raw is not None:
            yield self._tensor(type_, shape, piece(self.walker.source, self.raw.at, self.raw.value))
            self.raw = None
            yield from self._raw_lists()
        else:
            yield from self._listed(type_, shape, repeats)

    def external(self, data: Source, dtype: str, shape: tuple[int, ...]) -> Iterator[Part]:
        """Yield the tensor whose bytes are in another file."""
        if not is_numeric(dtype) or len(shape) > MAX_RANK or any(length < 0 for length in shape):
            raise ArtifactDamaged(f"{self.path} of {dtype} {str(list(shape))[:80]} cannot stand in a file beside")
        yield self._tensor(dtypes.named(dtype), shape, data)
        yield from self._raw_lists()

    def _tensor(self, dtype: Dtype, shape: tuple[int, ...], data: Source) -> Part:
        if dtype.file_size(math.prod(shape)) != data.size:
            raise ArtifactDamaged(f"{self.path} of {dtype.name} {str(list(shape))[:80]} has {data.size} bytes")
        return TensorPart(self.path, dtype.name, shape, data)

    def _listed(self, dtype: Dtype, shape: tuple[int, ...], repeats: bool) -> Iterator[Part]:
        lists = [(kind.type, fields) for kind, fields in self._lists.items()]
        if len(lists) > 1 or any(dtype.name not in kind.dtypes for kind in self._lists):
            raise ArtifactDamaged(f"{self.path} has its elements in several ways, or not where {dtype.name} stands")
        data = self._elements(dtype, *lists[0]) if lists else BytesSource(b"")
        count, unit = math.prod(shape), dtype.file_size(1)
        if not repeats or data.size == dtype.file_size(count):
            yield self._tensor(dtype, shape, data)
        elif data.size <= unit and count <= MOST_REPEATED:
            yield TensorPart(
                self.path, dtype.name, shape, BytesSource(data.read(0, unit) or bytes(unit)), 0, (0,) * len(shape)
            )
        else:
            yield Value(f"{self.path}/shape", str(list(shape)))
            yield TensorPart(f"{self.path}/values", dtype.name, (data.size // unit,), data)

    def _elements(self, dtype: Dtype, type_: str, fields: list[Field]) -> Source:
        """Return the bytes of the elements stored in a list."""
        if type_ in LISTS:
            return self._fixed(LISTS[type_][1], type_, fields)
        size = 1 if dtype.packed else dtype.element_size
        mask = (1 << 8 * size) - 1
        data = bytearray()
        for field_ in fields:
            numbers = protobuf.packed_varints(self.walker.wire, field_) if field_.kind == BYTES else (field_.value,)
            if field_.kind not in (BYTES, VARINT):
                raise ArtifactDamaged(f"{self.path} has elements of another type")
            for number in numbers:
                data += self._checked_bits(number, dtype, mask).to_bytes(size, "little")
            if len(data) > size * protobuf.MOST_NUMBERS:
                raise ArtifactDamaged(f"{self.path} has more elements than are read in this way")
        return BytesSource(bytes(data))

    def _checked_bits(self, number: int, dtype: Dtype, mask: int) -> int:
        """Return the bits of an element that is stored in a wider number."""
        negative = dtype.kind == dtypes.SIGNED and number >= 1 << 63 and number | mask >> 1 == (1 << 64) - 1
        if number > mask and not negative:
            raise ArtifactDamaged(f"{self.path} has an element {number}, which is no {dtype.name}")
        return number & mask

    def _fixed(self, size: int, type_: str, fields: list[Field]) -> Source:
        if len(fields) == 1 and fields[0].kind == BYTES:
            return piece(self.walker.source, fields[0].at, fields[0].value)
        if any(field_.kind != NUMBERS[type_][0] for field_ in fields):
            raise ArtifactDamaged(f"{self.path} has elements of another type")
        return BytesSource(b"".join(field_.value.to_bytes(size, "little") for field_ in fields))

    def _raw_lists(self) -> Iterator[Part]:
        """Yield elements that cannot be compared as numbers one by one."""
        if self.raw is not None:
            yield self.walker.text(below(self.path, "content"), self.raw, is_text=False)
        for kind, fields in self._lists.items():
            if kind.type != "bytes":
                yield from self.walker.numbers(below(self.path, f"{kind.type} values"), kind.type, fields)
                continue
            for number, field_ in enumerate(fields):
                yield from self.walker.value(below(self.path, str(number)), "bytes", field_)


def is_numeric(dtype: str) -> bool:
    """Return whether elements of this dtype can be compared as numbers."""
    try:
        dtypes.named(dtype)
    except ArtifactDamaged:
        return False
    return True
