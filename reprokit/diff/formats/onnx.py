"""The messages of ONNX; the module messages reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reprokit.core.dtypes import PACKED as PACKED_NAME
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Part, Source, Value
from reprokit.diff.formats import protobuf
from reprokit.diff.formats.messages import MessageWalker, TensorFields, TypedList, schema
from reprokit.diff.formats.protobuf import BYTES, VARINT, Field, signed
from reprokit.diff.sources import piece

TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
PACKED = frozenset((21, 22, 23, 25, 26))  # several of their elements share a byte

SCHEMA = schema(Path(__file__).with_suffix(".schema").read_text(encoding="utf-8"))


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
    """Yield the values by path; nodes by name, or by their first output."""
    walker = MessageWalker(source, limits, SCHEMA, {"TensorProto": _tensor}, TYPES)
    yield from walker.message("", "ModelProto")


def _tensor(walker: MessageWalker, path: str, at: int, end: int) -> Iterator[Part]:
    """Yield a TensorProto, with its elements as raw bytes, as a list, or in an external file."""
    elements = TensorFields(walker, path)
    dims: list[int] = []
    dtype = location = 0
    entries: list[Field] = []
    yielded = {1: (BYTES, VARINT), 2: (VARINT,), 13: (BYTES,), 14: (VARINT,)}
    for field in elements.fields(at, end, 9, _VALUES, yielded):
        if field.number == 1:
            dims += _lengths(walker, field)
        elif field.number == 2:
            dtype = field.value
        elif field.number == 13:
            entries.append(field)
        else:
            location = field.value
    yield from elements.rest("TensorProto", SCHEMA)
    name = TYPES.get(dtype, f"type {dtype}") + (PACKED_NAME if dtype in PACKED else "")
    if location == EXTERNAL or entries:
        yield from _external(elements, location, entries, name, tuple(dims))
    else:
        yield from elements.parts(name, tuple(dims))


def _lengths(walker: MessageWalker, field: Field) -> Iterator[int]:
    numbers = protobuf.packed_varints(walker.wire, field) if field.kind == BYTES else iter((field.value,))
    for count, number in enumerate(numbers):
        if count > 64:
            raise ArtifactDamaged("a shape has more dimensions than there can be")
        yield signed(number)


def _external(
    fields: TensorFields, location: int, entries: list[Field], dtype: str, shape: tuple[int, ...]
) -> Iterator[Part]:  # fmt: skip
    """Yield a tensor whose bytes are in an external file, if that file exists."""
    facts = _facts(fields.walker, entries[:MOST_ENTRIES])
    if location != EXTERNAL or len(entries) > MOST_ENTRIES or "location" not in facts:
        raise ArtifactDamaged(f"{fields.path} does not say where its bytes are")
    siblings = getattr(fields.walker.source, "beside", None)
    file = siblings.open(facts["location"]) if siblings is not None else None
    if file is None:
        yield Value(fields.path, f"{dtype} {list(shape)} in a file beside, which is not there: {sorted(facts.items())}")
        return
    offset, length = _number(facts, "offset", 0), _number(facts, "length", file.size)
    length = min(length, file.size - offset) if "length" not in facts else length
    yield from fields.external(piece(file, offset, length), dtype, shape)
    for key, text in sorted(facts.items()):
        if key not in ("location", "offset", "length"):
            yield Value(f"{fields.path}/external_data/{key}", text)


def _facts(walker: MessageWalker, entries: list[Field]) -> dict[str, str]:
    """Return the keys and values of external_data."""
    facts: dict[str, str] = {}
    for entry in entries:
        texts = {field.number: walker.plain("string", field) for field in walker.wire.fields(entry.at, entry.end)}
        if texts.keys() - {1, 2} or texts.get(1, "") in facts:
            raise ArtifactDamaged("external_data is damaged")
        facts[texts.get(1, "")] = texts.get(2, "")
    return facts


def _number(facts: dict[str, str], key: str, default: int) -> int:
    text = facts.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ArtifactDamaged(f"the {key} {text[:40]!r} of external_data is no number")
    return int(text)
