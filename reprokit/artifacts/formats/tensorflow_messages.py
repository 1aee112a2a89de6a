"""The messages of TensorFlow: SavedModel, checkpoints, events, examples; see messages for how to read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reprokit.artifacts.elements import Blob, Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats.messages import TypedList, Values, Walker, schema, written
from reprokit.artifacts.formats.protobuf import BYTES, VARINT, Field, signed
from reprokit.artifacts.sources import piece
from reprokit.errors import ArtifactDamaged

TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4",
    30: "uint4", 31: "int2", 32: "uint2", 33: "float4_e2m1fn",
}  # fmt: skip
QUANTIZED = {name: name[1:] for name in ("qint8", "quint8", "qint32", "qint16", "quint16")}
NAMES = {number: QUANTIZED.get(name, name) for number, name in TYPES.items()}  # as elements are compared
MOST_DIMENSIONS = 254

SCHEMA = schema(Path(__file__).with_suffix(".schema").read_text(encoding="utf-8"))
# The first is a sum over saved_model.pb, whose maps are written in any order; what is in it is compared there.
NOISE = ("saved_model_checksum", "uuid")


def walker(source: Source, limits: Limits) -> Walker:
    """Reads the messages of a source."""
    return Walker(source, limits, SCHEMA, {"TensorProto": tensor, "TensorShapeProto": _shape_part}, TYPES)


def shape(walker: Walker, at: int, end: int) -> tuple[tuple[int, ...], str]:
    """Return the lengths of a TensorShapeProto, and what it says besides."""
    lengths: list[int] = []
    more = ""
    for found in walker.wire.fields(at, end):
        if found.number == 2 and found.kind == BYTES:
            length, name = _dimension(walker, found)
            lengths.append(length)
            more += f" {len(lengths) - 1} is {name}" if name else ""
        else:
            more += " of unknown rank" if found[:3] == (3, VARINT, 1) else f" field {found.number} is {found.value}"
        if len(lengths) > MOST_DIMENSIONS:
            raise ArtifactDamaged("a shape has more dimensions than there can be")
    return tuple(lengths), more


def _dimension(walker: Walker, dimension: Field) -> tuple[int, str]:
    length, name = 0, ""
    for found in walker.wire.fields(dimension.at, dimension.end):
        if found.number == 1 and found.kind == VARINT:
            length = signed(found.value)
        else:
            name += walker.plain("string", found)
    return length, name


def _shape_part(walker: Walker, path: str, at: int, end: int) -> Iterator[Part]:
    lengths, more = shape(walker, at, end)
    texts = ("?" if length == -1 else str(length) for length in lengths)
    yield Value(path, f"[{', '.join(texts)}]{more}")


def tensor(walker: Walker, path: str, at: int, end: int) -> Iterator[Part]:
    """Yield a TensorProto: its elements as they stand in tensor_content, or in the list for their type."""
    found = Values(walker, path)
    lengths: tuple[int, ...] = ()
    dtype, more = 0, ""
    for field in found.fields(at, end, 4, _VALUES, {1: (VARINT,), 2: (BYTES,)}):
        if field.number == 1:
            dtype = field.value
        else:
            lengths, more = shape(walker, field.at, field.end)
    if more or any(length < 0 for length in lengths):
        yield Value(f"{path}/shape", f"{lengths}{more}")
        lengths = ()
    yield from found.rest("TensorProto", SCHEMA)
    if TYPES.get(dtype) in QUANTIZED:
        yield Value(f"{path}/type", TYPES[dtype])
    yield from found.parts(NAMES.get(dtype, "") or f"type {dtype}", lengths, repeats=True)


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
    """Bytes of a tensor of strings."""
    if size > 1 << 16:
        return Blob(name, piece(source, start, size))
    return Value(name, written(source.read(start, size)))


def saved_model(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield every value by its path, nodes by their names; the variables are a checkpoint beside it."""
    yield from walker(source, limits).message("", "SavedModel")


def meta_graph(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the same of NAME.meta."""
    yield from walker(source, limits).message("", "MetaGraphDef")


def fingerprint(source: Source, limits: Limits) -> Iterator[Part]:
    """Each field: sums of the parts of a SavedModel, a random identity, and the sum of how the file was written."""
    for part in walker(source, limits).message("", "FingerprintDef"):
        yield Noise(part.name, part.text) if isinstance(part, Value) and part.name in NOISE else part
