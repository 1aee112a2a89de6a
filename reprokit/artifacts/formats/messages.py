"""Messages of Protocol buffers by the names of their fields: every value by its path, tensors where they stand.

A schema is a text with a message in each line: its name, then NUMBER=FIELD:TYPE for each field. TYPE* is repeated,
TYPE*KEY is repeated and named by the field KEY, KEY|OTHER where the first may be empty, KEY~ where their order means
nothing; {KEY:VALUE} is a map.
What no schema knows is compared as it stands.
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

from reprokit import dtypes
from reprokit.artifacts.elements import Blob, Limits, Noise, Part, Source, TensorPart, Value
from reprokit.artifacts.formats import protobuf
from reprokit.artifacts.formats.pickle_nodes import exact_float
from reprokit.artifacts.formats.protobuf import BYTES, FIXED32, FIXED64, VARINT, Field, Wire
from reprokit.artifacts.sources import BytesSource, piece
from reprokit.artifacts.tensors import MAX_RANK
from reprokit.dtypes import Dtype
from reprokit.errors import ArtifactDamaged

DEEPEST = 100  # messages within messages, as Protocol buffers have it themselves
LONGEST_TEXT = 1 << 16  # bytes of a text or bytes that are shown as one value
LONGEST_KEY = 4096
SHORT_LIST = 64  # numbers that are one value; more are a tensor
_FIELD = re.compile(r"([0-9]+)=(\w+):(?:\{(\w+):([\w.]+)\}|([\w.]+)(\*?)([\w.|]*)(~?))")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a schema says of one field."""

    name: str
    type: str  # of a number or text, or the name of a message
    repeated: bool = False
    keys: tuple[str, ...] = ()  # of repeated messages: the fields that name them
    map_key: str = ""  # of a map: the type of its keys
    unordered: bool = False


Schema: TypeAlias = Mapping[str, Mapping[int, Kind]]
Special: TypeAlias = Callable[["Walker", str, int, int], Iterator[Part]]


def schema(text: str) -> Schema:
    """Return the messages of a text."""
    lines = re.sub(r"\n\s+", " ", text.strip()).splitlines()
    return {line.split(" ")[0]: dict(map(_kind, line.split(" ")[1:])) for line in lines}


def _kind(text: str) -> tuple[int, Kind]:
    found = _FIELD.fullmatch(text)
    assert found is not None, text
    number, name, map_key, map_value, type_, star, keys, unordered = found.groups()
    names = tuple(keys.split("|")) if keys else ()
    return int(number), Kind(name, map_value or type_, bool(star or map_key), names, map_key or "", bool(unordered))


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
class Walker:
    """One pass over the messages of a source."""

    source: Source
    limits: Limits
    schema: Schema
    special: Mapping[str, Special] = field(default_factory=dict)  # readers of messages that are more than their fields
    types: Mapping[int, str] = field(default_factory=dict)  # the names of the types of elements
    depth: int = 0

    def __post_init__(self) -> None:
        self.wire = Wire(self.source, self.limits)
        self.deepest = min(DEEPEST, self.limits.nesting)

    def message(self, path: str, name: str, at: int = 0, end: int | None = None) -> Iterator[Part]:
        """Yield the parts of a message, by default of the whole source."""
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

    def _fields(self, path: str, kinds: Mapping[int, Kind], at: int, end: int) -> Iterator[Part]:
        lists: dict[int, list[Field]] = {}
        places = _Places()
        for found in self.wire.fields(at, end):
            kind = kinds.get(found.number)
            if kind is None:
                yield from self.unknown(below(path, f"field {found.number}"), found)
            elif kind.repeated and kind.type in NUMBERS and not kind.map_key:
                lists.setdefault(found.number, []).append(found)
            else:
                yield from self._one(path, kind, found, places)
        for number, fields in lists.items():
            yield from self.numbers(below(path, kinds[number].name), kinds[number].type, fields)
        yield from places.orders(path)

    def _one(self, path: str, kind: Kind, found: Field, places: _Places) -> Iterator[Part]:
        if kind.map_key:
            yield from self._entry(below(path, kind.name), kind, found)
            return
        name = below(path, kind.name)
        if kind.keys:
            key = self.key(kind, found) if found.kind == BYTES else ""
            places.add(kind, key)
            name = below(name, key)
        elif kind.repeated:
            name = below(name, str(places.next(kind.name)))
        yield from self.value(name, kind.type, found)

    def value(self, name: str, type_: str, found: Field) -> Iterator[Part]:
        """Yield the parts of one field of this type."""
        if type_ in NUMBERS and found.kind == NUMBERS[type_][0]:
            text = NUMBERS[type_][1](found.value)
            yield Value(name, self.types.get(found.value, text) if type_ == "dtype" else text)
        elif found.kind != BYTES or type_ in NUMBERS:
            yield from self.unknown(name, found)
        elif type_ in ("string", "bytes"):
            yield self.text(name, found, is_text=type_ == "string")
        else:
            yield from self.message(name, type_, found.at, found.end)

    def text(self, name: str, found: Field, *, is_text: bool) -> Part:
        """Return a text or bytes: short ones as they are written in Python, so that no two are written alike."""
        if found.value > LONGEST_TEXT:
            return Blob(name, piece(self.source, found.at, found.value))
        return Value(name, written(self.wire.content(found), is_text=is_text))

    def unknown(self, name: str, found: Field) -> Iterator[Part]:
        """Yield a field as it stands."""
        if found.kind == BYTES:
            yield self.text(name, found, is_text=False)
        else:
            yield Value(name, f"{found.value} of {8 * protobuf.SIZES.get(found.kind, 8)} bits")

    def _entry(self, path: str, kind: Kind, found: Field) -> Iterator[Part]:
        """One entry of a map: a key and a value."""
        if found.kind != BYTES:
            yield from self.unknown(path, found)
            return
        fields = list(itertools.islice(self.wire.fields(found.at, found.end), 65))
        if len(fields) > 64:
            raise ArtifactDamaged("an entry of a map has more fields than a key and a value")
        key = next((self.plain(kind.map_key, one) for one in reversed(fields) if one.number == 1), "(none)")
        name = below(path, key)
        if not any(one.number == 2 for one in fields):
            yield Value(name, "(none)")
        for one in fields:
            if one.number == 2:
                yield from self.value(name, kind.type, one)
            elif one.number != 1:
                yield from self.unknown(below(name, f"field {one.number}"), one)

    def plain(self, type_: str, found: Field) -> str:
        """Return a key as text."""
        if type_ == "string" and found.kind == BYTES and found.value <= LONGEST_KEY:
            return self.wire.content(found).decode("utf-8", "backslashreplace")
        if type_ in NUMBERS and found.kind == NUMBERS[type_][0]:
            return NUMBERS[type_][1](found.value)
        return f"(key at byte {found.at})"

    def key(self, kind: Kind, found: Field) -> str:
        """Return what names one of many messages; empty where it has no name."""
        for keys in kind.keys:
            name = self._named(kind.type, keys.split("."), found.at, found.end)
            if name:
                return name
        return ""

    def _named(self, message: str, names: list[str], at: int, end: int) -> str:
        kinds = self.schema[message]
        for one in self.wire.fields(at, end):
            kind = kinds.get(one.number)
            if kind is None or kind.name != names[0] or one.kind != BYTES:
                continue
            return self.plain("string", one) if len(names) == 1 else self._named(kind.type, names[1:], one.at, one.end)
        return ""

    def numbers(self, name: str, type_: str, fields: list[Field]) -> Iterator[Part]:
        """Yield the numbers of a repeated field, packed or not."""
        if type_ in LISTS and len(fields) == 1 and fields[0].kind == BYTES:
            yield from self._packed(name, type_, fields[0])
            return
        bits: list[int] = []
        for found in fields:
            if found.kind == NUMBERS[type_][0]:
                bits.append(found.value)
            elif found.kind == BYTES and NUMBERS[type_][0] == VARINT:
                bits += protobuf.packed_varints(self.wire, found)
            else:
                yield from self.unknown(name, found)
        yield from self._list(name, type_, bits)

    def _packed(self, name: str, type_: str, found: Field) -> Iterator[Part]:
        dtype, size = LISTS[type_]
        if found.value % size:
            yield from self.unknown(name, found)
        elif found.value <= size * SHORT_LIST:
            data = self.wire.content(found)
            yield from self._list(
                name, type_, [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]
            )
        else:
            yield TensorPart(name, dtype, (found.value // size,), piece(self.source, found.at, found.value))

    def _list(self, name: str, type_: str, bits: list[int]) -> Iterator[Part]:
        if len(bits) <= SHORT_LIST:
            yield Value(name, f"[{', '.join(map(NUMBERS[type_][1], bits))}]")
            return
        dtype, size = LISTS.get(type_, ("uint64" if type_.startswith("u") else "int64", 8))
        data = b"".join(number.to_bytes(size, "little") for number in bits)
        yield TensorPart(name, dtype, (len(bits),), BytesSource(data))


class _Places:
    """The places of repeated fields: a number for those without names, and the order of those with."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._orders: dict[Kind, hashlib._Hash] = {}

    def next(self, name: str) -> int:
        """Return the next number of this field."""
        self._counts[name] += 1
        return self._counts[name] - 1

    def add(self, kind: Kind, key: str) -> None:
        """Note that the next one is called so."""
        self._counts[kind.name] += 1
        self._orders.setdefault(kind, hashlib.sha256()).update(key.encode("utf-8", "surrogateescape") + b"\0")

    def orders(self, path: str) -> Iterator[Part]:
        """Yield the order in which the named ones stand."""
        for kind, digest in self._orders.items():
            if (count := self._counts[kind.name]) > 1:
                name, text = below(path, f"{kind.name}/(order)"), f"{count} as {digest.hexdigest()[:32]}"
                yield Noise(name, text) if kind.unordered else Value(name, text)


def below(path: str, name: str) -> str:
    """Return the path of what is called so within what has this path."""
    return f"{path}/{name}" if path else name


def written(data: bytes, *, is_text: bool = True) -> str:
    """Return a text or bytes as Python writes them."""
    if is_text:
        try:
            return repr(data.decode("utf-8"))
        except UnicodeDecodeError:
            pass
    return repr(data)


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

    def fields(
        self, at: int, end: int, raw: int, lists: Mapping[int, TypedList], wanted: Mapping[int, tuple[int, ...]]
    ) -> Iterator[Field]:
        """The fields of these numbers and kinds; of the others, those of the raw bytes and of the lists are kept."""
        for found in self.walker.wire.fields(at, end):
            if found.kind in wanted.get(found.number, ()):
                yield found
            elif found.number == raw and found.kind == BYTES and self.raw is None:
                self.raw = found
            elif found.number in lists:
                self._lists.setdefault(lists[found.number], []).append(found)
            else:
                self.others.append(found)

    def rest(self, message: str, schema: Schema) -> Iterator[Part]:
        """Yield the parts of the other fields."""
        for number, found in enumerate(self.others):
            kind = schema[message].get(found.number)
            if kind is None:
                yield from self.walker.unknown(below(self.path, f"field {found.number}"), found)
            elif kind.repeated and kind.type in NUMBERS:
                yield from self.walker.numbers(below(self.path, f"{kind.name}/{number}"), kind.type, [found])
            else:
                yield from self.walker.value(below(self.path, kind.name), kind.type, found)

    def parts(self, dtype: str, shape: tuple[int, ...], *, repeats: bool = False) -> Iterator[Part]:
        """Yield the tensor; repeats: a single number may stand for all."""
        if any(length < 0 for length in shape):
            raise ArtifactDamaged(f"{self.path} has the shape {str(shape)[:80]}")
        if dtype == "string" or not known(dtype) or len(shape) > MAX_RANK:
            yield Value(self.path, f"{dtype} {list(shape)}")
            yield from self._as_they_are()
            return
        type_ = dtypes.named(dtype)
        if self.raw is not None:
            yield self._tensor(type_, shape, piece(self.walker.source, self.raw.at, self.raw.value))
            self.raw = None
            yield from self._as_they_are()
        else:
            yield from self._listed(type_, shape, repeats)

    def beside(self, data: Source, dtype: str, shape: tuple[int, ...]) -> Iterator[Part]:
        """Yield the tensor whose bytes stand elsewhere."""
        if not known(dtype) or len(shape) > MAX_RANK or any(length < 0 for length in shape):
            raise ArtifactDamaged(f"{self.path} of {dtype} {str(list(shape))[:80]} cannot stand in a file beside")
        yield self._tensor(dtypes.named(dtype), shape, data)
        yield from self._as_they_are()

    def _tensor(self, dtype: Dtype, shape: tuple[int, ...], data: Source) -> Part:
        if dtype.file_size(math.prod(shape)) != data.size:
            raise ArtifactDamaged(f"{self.path} of {dtype.name} {str(list(shape))[:80]} has {data.size} bytes")
        return TensorPart(self.path, dtype.name, shape, data)

    def _listed(self, dtype: Dtype, shape: tuple[int, ...], repeats: bool) -> Iterator[Part]:
        lists = [(listed.type, fields) for listed, fields in self._lists.items()]
        if len(lists) > 1 or any(dtype.name not in listed.dtypes for listed in self._lists):
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
        """Return the bytes of the elements that a list stands for."""
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
        return BytesSource(bytes(data))

    def _narrow(self, number: int, dtype: Dtype, mask: int) -> int:
        """Return the bits of an element, which a list may hold in a wider number."""
        negative = dtype.kind == dtypes.SIGNED and number >= 1 << 63 and number | mask >> 1 == (1 << 64) - 1
        if number > mask and not negative:
            raise ArtifactDamaged(f"{self.path} has an element {number}, which is no {dtype.name}")
        return number & mask

    def _fixed(self, size: int, type_: str, fields: list[Field]) -> Source:
        if len(fields) == 1 and fields[0].kind == BYTES:
            return piece(self.walker.source, fields[0].at, fields[0].value)
        if any(found.kind != NUMBERS[type_][0] for found in fields):
            raise ArtifactDamaged(f"{self.path} has elements of another type")
        return BytesSource(b"".join(found.value.to_bytes(size, "little") for found in fields))

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
    """Return whether elements of this type are compared as numbers."""
    try:
        dtypes.named(dtype)
    except ArtifactDamaged:
        return False
    return True
