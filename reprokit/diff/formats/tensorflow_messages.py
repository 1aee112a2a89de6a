"""The messages of TensorFlow: SavedModel, checkpoints, events, examples; the module messages reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Blob, Limits, Noise, Part, Source, Value
from reprokit.diff.formats.messages import MessageWalker, TensorFields, TypedList, python_literal, schema
from reprokit.diff.formats.protobuf import BYTES, VARINT, Field, signed
from reprokit.diff.sources import piece

TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4",
    30: "uint4", 31: "int2", 32: "uint2", 33: "float4_e2m1fn",
}  # fmt: skip
QUANTIZED = {name: name[1:] for name in ("qint8", "quint8", "qint32", "qint16", "quint16")}
NAMES = {number: QUANTIZED.get(name, name) for number, name in TYPES.items()}  # dtypes for the comparison
MOST_DIMENSIONS = 254

SCHEMA = schema(Path(__file__).with_suffix(".schema").read_text(encoding="utf-8"))
# The first is a checksum of saved_model.pb, whose maps have no fixed order; its content is compared by itself.
NOISE = ("saved_model_checksum", "uuid")


def walker(source: Source, limits: Limits) -> MessageWalker:
    """Return a walker over the messages of a source."""
    return MessageWalker(source, limits, SCHEMA, {"TensorProto": tensor, "TensorShapeProto": _shape_part}, TYPES)


def shape(walker: MessageWalker, at: int, end: int) -> tuple[tuple[int, ...], str]:
    """Return the dimensions of a TensorShapeProto, and a text of its other fields."""
    lengths: list[int] = []
    more = ""
    for field in walker.wire.fields(at, end):
        if field.number == 2 and field.kind == BYTES:
            length, name = _dimension(walker, field)
            lengths.append(length)
            more += f" {len(lengths) - 1} is {name}" if name else ""
        else:
            more += " of unknown rank" if field[:3] == (3, VARINT, 1) else f" field {field.number} is {field.value}"
        if len(lengths) > MOST_DIMENSIONS:
            raise ArtifactDamaged("a shape has more dimensions than there can be")
    return tuple(lengths), more


def _dimension(walker: MessageWalker, dimension: Field) -> tuple[int, str]:
    length, name = 0, ""
    for field in walker.wire.fields(dimension.at, dimension.end):
        if field.number == 1 and field.kind == VARINT:
            length = signed(field.value)
        else:
            name += walker.plain("string", field)
    return length, name


def _shape_part(walker: MessageWalker, path: str, at: int, end: int) -> Iterator[Part]:
    lengths, more = shape(walker, at, end)
    texts = ("?" if length == -1 else str(length) for length in lengths)
    yield Value(path, f"[{', '.join(texts)}]{more}")


def tensor(walker: MessageWalker, path: str, at: int, end: int) -> Iterator[Part]:
    """Yield a TensorProto, with its elements in tensor_content or in the list for their type."""
    elements = TensorFields(walker, path)
    lengths: tuple[int, ...] = ()
    dtype, more = 0, ""
    for field in elements.fields(at, end, 4, _VALUES, {1: (VARINT,), 2: (BYTES,)}):
        if field.number == 1:
            dtype = field.value
        else:
            lengths, more = shape(walker, field.at, field.end)
    if more or any(length < 0 for length in lengths):
        yield Value(f"{path}/shape", f"{lengths}{more}")
        lengths = ()
    yield from elements.rest("TensorProto", SCHEMA)
    if TYPES.get(dtype) in QUANTIZED:
        yield Value(f"{path}/type", TYPES[dtype])
    yield from elements.parts(NAMES.get(dtype, "") or f"type {dtype}", lengths, repeats=True)


_VALUES = {
    5: TypedList("float", ("float32",)),
    6: TypedList("double", ("float64",)),
    7: TypedList("int32", ("int32", "int16", "uint16", "int8", "uint8", "int4", "uint4", "int2", "uint2")),
    8: TypedList("bytes", ()),
    9: TypedList("float", ("complex64",)),
    10: TypedList("int64", ("int64",)),
    11: TypedList("bool", ("bool",)),
    12: TypedList("double", ("complex128",)),
    13: TypedList("int32", ("float16", "bfloat16")),
    16: TypedList("uint32", ("uint32",)),
    17: TypedList("uint64", ("uint64",)),
}


def string(name: str, source: Source, start: int, size: int) -> Part:
    """Return an element of a string tensor as a part."""
    if size > 1 << 16:
        return Blob(name, piece(source, start, size))
    return Value(name, python_literal(source.read(start, size)))


def saved_model(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of a SavedModel by path, nodes by name; its variables are in a separate checkpoint."""
    yield from walker(source, limits).message("", "SavedModel")


def meta_graph(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of a MetaGraphDef (NAME.meta)."""
    yield from walker(source, limits).message("", "MetaGraphDef")


def fingerprint(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the checksums of the parts of a SavedModel; the random id and the checksum of the file are noise."""
    for part in walker(source, limits).message("", "FingerprintDef"):
        yield Noise(part.name, part.text) if isinstance(part, Value) and part.name in NOISE else part
