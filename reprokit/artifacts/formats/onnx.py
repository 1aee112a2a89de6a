"""ONNX's models: initializers as tensors, also those in files beside, nodes with their attributes as values."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Part, Source, Value
from reprokit.artifacts.formats import protobuf
from reprokit.artifacts.formats.element_decoding import TypedList, Values
from reprokit.artifacts.formats.messages import Walker
from reprokit.artifacts.formats.onnx_messages import PACKED, SCHEMA, TYPES
from reprokit.artifacts.formats.protobuf import BYTES, VARINT, Field, signed
from reprokit.artifacts.sources import piece
from reprokit.dtypes import PACKED as PACKED_NAME
from reprokit.errors import ArtifactDamaged

EXTERNAL = 1  # data_location
MOST_ENTRIES = 16
_ELSEWHERE = ("float32", "complex64", "string", "int64", "float64", "complex128", "uint32", "uint64")
_NARROW = (f"{name}{PACKED_NAME}" if number in PACKED else name for number, name in TYPES.items())
_VALUES = {
    4: TypedList("float", ("float32", "complex64")),
    5: TypedList("int32", tuple(name for name in _NARROW if name not in _ELSEWHERE)),
    6: TypedList("bytes", ()),
    7: TypedList("int64", ("int64",)),
    10: TypedList("double", ("float64", "complex128")),
    11: TypedList("uint64", ("uint32", "uint64")),
}


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Every value by its path: nodes by their names, else their first outputs."""
    walker = Walker(source, limits, SCHEMA, {"TensorProto": _tensor}, TYPES)
    yield from walker.message("", "ModelProto")


def _tensor(walker: Walker, path: str, at: int, end: int) -> Iterator[Part]:
    """A TensorProto: its elements as raw bytes, as a list, or in a file beside."""
    found = Values(walker, path)
    dims: list[int] = []
    dtype = location = 0
    entries: list[Field] = []
    for field in walker.wire.fields(at, end):
        if field.number == 1 and field.kind in (BYTES, VARINT):
            dims += _lengths(walker, field)
        elif field.number == 2 and field.kind == VARINT:
            dtype = field.value
        elif field.number == 9 and field.kind == BYTES and found.raw is None:
            found.raw = field
        elif field.number == 13 and field.kind == BYTES:
            entries.append(field)
        elif field.number == 14 and field.kind == VARINT:
            location = field.value
        elif field.number in _VALUES:
            found.add(_VALUES[field.number], field)
        else:
            found.others.append(field)
    yield from found.rest("TensorProto", SCHEMA)
    name = TYPES.get(dtype, f"type {dtype}") + (PACKED_NAME if dtype in PACKED else "")
    if location == EXTERNAL or entries:
        yield from _external(found, location, entries, name, tuple(dims))
    else:
        yield from found.parts(name, tuple(dims))


def _lengths(walker: Walker, field: Field) -> Iterator[int]:
    numbers = protobuf.packed_varints(walker.wire, field) if field.kind == BYTES else iter((field.value,))
    for count, number in enumerate(numbers):
        if count > 64:
            raise ArtifactDamaged("a shape has more dimensions than there can be")
        yield signed(number)


def _external(
    found: Values, location: int, entries: list[Field], dtype: str, shape: tuple[int, ...]
) -> Iterator[Part]:  # fmt: skip
    """A tensor whose bytes stand in a file beside, which is read where it is there."""
    facts = _facts(found.walker, entries[:MOST_ENTRIES])
    if location != EXTERNAL or len(entries) > MOST_ENTRIES or "location" not in facts:
        raise ArtifactDamaged(f"{found.path} does not say where its bytes are")
    beside = getattr(found.walker.source, "beside", None)
    file = beside.open(facts["location"]) if beside is not None else None
    if file is None:
        yield Value(found.path, f"{dtype} {list(shape)} in a file beside, which is not there: {sorted(facts.items())}")
        return
    offset, length = _number(facts, "offset", 0), _number(facts, "length", file.size)
    length = min(length, file.size - offset) if "length" not in facts else length
    yield from found.beside(piece(file, offset, length), dtype, shape)
    for key, text in sorted(facts.items()):
        if key not in ("location", "offset", "length"):
            yield Value(f"{found.path}/external_data/{key}", text)


def _facts(walker: Walker, entries: list[Field]) -> dict[str, str]:
    """The keys and values of external_data."""
    facts: dict[str, str] = {}
    for entry in entries:
        texts = {one.number: walker.plain("string", one) for one in walker.wire.fields(entry.at, entry.end)}
        if texts.keys() - {1, 2} or texts.get(1, "") in facts:
            raise ArtifactDamaged("external_data is damaged")
        facts[texts.get(1, "")] = texts.get(2, "")
    return facts


def _number(facts: dict[str, str], key: str, default: int) -> int:
    text = facts.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ArtifactDamaged(f"the {key} {text[:40]!r} of external_data is no number")
    return int(text)
