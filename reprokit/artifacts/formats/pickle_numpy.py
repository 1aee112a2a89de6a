"""Recognises NumPy's arrays, scalars and types among the nodes of a pickle, and joblib's arrays that follow them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from reprokit.artifacts.formats.pickle_nodes import (
    Array,
    Global,
    How,
    Item,
    Mapping,
    Object,
    Octets,
    OldString,
    Sequence,
    exact,
)
from reprokit.artifacts.formats.pickle_walk import ROOT, Seen, Walk, under
from reprokit.artifacts.parts import Part, Source, Tensor
from reprokit.artifacts.sources import Memory
from reprokit.errors import ArtifactDamaged

CORES = ("numpy.core.", "numpy._core.")
RECONSTRUCT = tuple(f"{core}multiarray._reconstruct" for core in CORES)
SCALAR = tuple(f"{core}multiarray.scalar" for core in CORES)
FROM_BUFFER = tuple(f"{core}numeric._frombuffer" for core in CORES)
KNOWN_TO_JOBLIB = {"subclass", "shape", "order", "dtype", "allow_mmap", "numpy_array_alignment_bytes"}
NESTED_TYPES = 4
MOST_FIELDS = 4096  # of one type, with those within its fields
NUMBER_KINDS = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
    "M8": "int64", "m8": "int64",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """One named column of records."""

    name: str
    dtype: Dtype
    offset: int


@dataclass(frozen=True)
class Dtype:
    """A NumPy type: what it is called, and how its elements can be compared."""

    text: str  # says all of it but the byte order
    elements: str  # as a tensor's type; empty for Python objects
    size: int
    big_endian: bool = False
    shape: tuple[int, ...] = ()  # of an array within each element
    fields: tuple[Field, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the name of the tensor's type says all."""
        return self.text == self.elements


@dataclass
class Room:
    """How many more fields a type may have: a field's type may be shared by all others."""

    fields: int = MOST_FIELDS


def dtype_of(item: Item, level: int = 0, room: Room | None = None) -> Dtype | None:
    """The type that a node describes; None where it is not understood to the last bit."""
    room = room or Room()
    room.fields -= 1
    if not isinstance(item, Object) or not item.called("numpy.dtype") or level > NESTED_TYPES or room.fields < 0:
        return None
    state = item.state()
    if len(item.arguments) != 3 or not isinstance(state, Sequence) or not 8 <= len(state.items) <= 9:
        return None
    version, order, subtype, names, fields, size, alignment, flags = state.items[:8]
    code = item.arguments[0]
    if version not in (3, 4) or (order not in ("<", ">", "|") and order not in (b"<", b">", b"|")):
        return None
    big = order in (">", b">")
    unit = unit_of(state.items[8]) if len(state.items) == 9 else ""
    if unit is None:
        return None
    if isinstance(code, Global) and code.module.partition(".")[0] == "ml_dtypes":
        plain = code.name.isidentifier() and (subtype, names, fields) == (None, None, None)
        return Dtype(code.name, code.name, 1 if "8" in code.name else 2, big) if plain else None
    if not isinstance(code, (str, bytes)):
        return None
    code = code.decode("latin-1") if isinstance(code, bytes) else code
    if subtype is not None:
        return within_elements(subtype, size, level, room)
    if fields is not None or names is not None:
        return record(names, fields, size, f"aligned to {exact(alignment)}, flags {exact(flags)}", level, room)
    rest = f"{exact(size)}, {exact(alignment)}, {exact(flags)}"
    return simple(code, size, big, unit, "" if rest == "-1, -1, 0" else f" ({rest})")


def remembered(item: Item, known: dict[int, tuple[Item, object]]) -> Dtype | None:
    """As dtype_of, worked out once for each node: thousands of arrays may share a type of thousands of fields."""
    if not isinstance(item, Object):
        return None
    if id(item) not in known:
        known[id(item)] = item, dtype_of(item)
    found = known[id(item)][1]
    return found if isinstance(found, Dtype) else None


def simple(code: str, size: Item, big: bool, unit: str, rest: str) -> Dtype | None:
    """A type without fields, by its code: a letter and its bytes."""
    kind, digits = code[:1], code[1:]
    if code in NUMBER_KINDS:
        elements = NUMBER_KINDS[code]
        text = f"{'datetime64' if kind == 'M' else 'timedelta64'}{unit}" if kind in "Mm" else f"{elements}{unit}"
        return Dtype(f"{text}{rest}", elements, int(digits), big)
    if kind == "O":
        return Dtype(f"object{unit}", "", 8)
    if kind not in "SUVafcg" or not (digits.isascii() and digits.isdigit()) or len(digits) > 7:
        return None
    length = int(digits) * (4 if kind == "U" else 1) if type(size) is not int or size < 0 else size
    return Dtype(f"{code}{' big-endian' if big else ''}{unit}{rest}", f"raw{length}", length)


def unit_of(item: Item) -> str | None:
    """The unit of dates; None where there is other metadata."""
    if item is None:
        return ""
    if not isinstance(item, Sequence) or len(item.items) != 2:
        return None
    metadata, unit = item.items
    if not (metadata is None or (isinstance(metadata, Mapping) and not metadata.items)):
        return None
    return exact(unit) if isinstance(unit, Sequence) else None


def within_elements(subtype: Item, size: Item, level: int, room: Room) -> Dtype | None:
    """A type whose elements are small arrays."""
    if not isinstance(subtype, Sequence) or len(subtype.items) != 2:
        return None
    base, shape = dtype_of(subtype.items[0], level + 1, room), shape_of(subtype.items[1])
    if base is None or shape is None or base.fields or base.shape or not base.elements:
        return None
    if size != base.size * math.prod(shape):
        return None
    return Dtype(f"{base.text} {shape}", base.elements, base.size * math.prod(shape), base.big_endian, shape)


def record(names: Item, fields: Item, size: Item, rest: str, level: int, room: Room) -> Dtype | None:
    """A type with named fields."""
    if not isinstance(names, Sequence) or not isinstance(fields, Mapping) or type(size) is not int:
        return None
    found = [field_of(key, value, level, room) for key, value in fields.items]
    known = {field.name: field for field in found if field is not None}
    order = [text_of(name) for name in names.items]
    if len(known) != len(found) or sorted(known) != sorted(name or "" for name in order):
        return None
    columns = tuple(known[name] for name in order if name)
    if any(column.offset + column.dtype.size > size for column in columns):
        return None
    text = ", ".join(f"{column.name!r} {column.dtype.text} at {column.offset}" for column in columns)
    return Dtype(f"record of {size} bytes ({text}), {rest}", f"raw{size}", size, fields=columns)


def field_of(key: Item, value: Item, level: int, room: Room) -> Field | None:
    name = text_of(key)
    if name is None or not isinstance(value, Sequence) or len(value.items) != 2:
        return None
    dtype, offset = dtype_of(value.items[0], level + 1, room), value.items[1]
    if dtype is None or not dtype.elements or type(offset) is not int or offset < 0:
        return None
    return Field(name, dtype, offset)


def text_of(item: Item) -> str | None:
    if isinstance(item, OldString):
        return item.decode("latin-1")
    return item if isinstance(item, str) else None


def shape_of(item: Item) -> tuple[int, ...] | None:
    """The lengths of an array's dimensions."""
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        return (item,)
    if not isinstance(item, Sequence) or item.kind not in ("tuple", "list") or len(item.items) > 64:
        return None
    lengths = tuple(length for length in item.items if type(length) is int and 0 <= length < 1 << 63)
    return lengths if len(lengths) == len(item.items) else None


def data_of(item: Item) -> Source | None:
    """Where the bytes stand that an array is made of."""
    if isinstance(item, Octets) and item.kind in ("bytes", "string", "bytearray"):
        return item.source
    return Memory(bytes(item)) if isinstance(item, bytes) else None


def recognise(walk: Walk, path: str, item: Object) -> Seen | None:
    """An array, a scalar or a type of NumPy."""
    if item.called(*RECONSTRUCT):
        return array(walk, path, item)
    if item.called(*FROM_BUFFER):
        return array_of_buffer(walk, path, item)
    if item.called(*SCALAR):
        return scalar(walk, path, item)
    if item.called("numpy.dtype"):
        dtype = remembered(item, walk.known)
        if dtype is not None:
            pass_over_dtype(walk, item)
            return (walk.value(path, f"dtype {dtype.text}{' big-endian' if dtype.big_endian else ''}"),), None
    return None


def array(walk: Walk, path: str, item: Object) -> Seen | None:
    """What ndarray.__reduce__ writes."""
    state = item.state()
    if len(item.arguments) != 3 or not isinstance(state, Sequence) or len(state.items) != 5:
        return None
    kind, first_shape, _ = item.arguments
    version, shape_item, dtype_item, fortran, data = state.items
    shape, dtype = shape_of(shape_item), remembered(dtype_item, walk.known)
    if not isinstance(kind, Global) or exact(first_shape) != "(0,)" or version != 1 or shape is None or dtype is None:
        return None
    if type(fortran) not in (bool, int) or exact(item.arguments[2]) not in ("b'b'", "'b'", "str8 b'b'"):
        return None
    note = "" if str(kind) == "numpy.ndarray" else f"{kind}"
    if not dtype.elements:
        return objects(walk, path, item, dtype_item, shape, data, note)
    source = data_of(data)
    if source is None:
        return None
    walk.meet(item)
    pass_over_dtype(walk, dtype_item)
    return shown(walk, path, Elements(dtype, shape, bool(fortran), source, note), data), None


def array_of_buffer(walk: Walk, path: str, item: Object) -> Seen | None:
    """What protocol 5 writes for contiguous arrays."""
    if len(item.arguments) != 4 or item.changes or item.keywords is not None:
        return None
    data, dtype_item, shape_item, order = item.arguments
    shape, dtype = shape_of(shape_item), remembered(dtype_item, walk.known)
    note = ""
    if isinstance(data, Octets) and data.kind.startswith("read-only "):
        data = Octets(data.kind.removeprefix("read-only "), data.source)
        note = "read-only"
    elif isinstance(data, bytes) or (isinstance(data, Octets) and data.kind == "bytes"):
        note = "read-only"
    source = data_of(data)
    if source is None or shape is None or dtype is None or not dtype.elements or order not in ("C", "F"):
        return None
    pass_over_dtype(walk, dtype_item)
    walk.meet(item)
    return shown(walk, path, Elements(dtype, shape, order == "F", source, note), item.arguments[0]), None


def scalar(walk: Walk, path: str, item: Object) -> Seen | None:
    """One number of a NumPy type."""
    if len(item.arguments) != 2 or item.changes:
        return None
    dtype, source = remembered(item.arguments[0], walk.known), data_of(item.arguments[1])
    if dtype is None or not dtype.elements or source is None:
        return None
    pass_over_dtype(walk, item.arguments[0])
    walk.meet(item)
    return shown(walk, path, Elements(dtype, (), False, source, "scalar"), item.arguments[1]), None


def objects(
    walk: Walk, path: str, item: Object, dtype: Item, shape: tuple[int, ...], data: Item, note: str
) -> Seen | None:
    """An array of Python objects, which stand in a list."""
    if not isinstance(data, Sequence) or data.kind != "list" or walk.seen.get(id(data)) is not None:
        return None
    walk.first_seen(data, f"{path or ROOT} (elements)")
    walk.meet(item)
    pass_over_dtype(walk, dtype)
    fortran = item.state().items[3] if isinstance(item.state(), Sequence) else None  # type: ignore[union-attr]
    text = f"array of {len(data.items)} objects, shape {shape}{' in Fortran order' if fortran else ''} {note}".strip()
    return (walk.value(path, text),), ((under(path, str(i)), one) for i, one in enumerate(data.items))


@dataclass(frozen=True)
class Elements:
    """The elements of an array."""

    dtype: Dtype
    shape: tuple[int, ...]
    fortran: bool
    source: Source
    note: str = ""  # anything but a plain, writable array


def shown(walk: Walk, path: str, elements: Elements, data: Item = None) -> Iterator[Part]:
    """An array as tensors, and as values what the tensors do not say."""
    dtype, shape = elements.dtype, elements.shape
    size = math.prod(shape) * dtype.size
    if size != elements.source.size:
        raise ArtifactDamaged(f"{path or ROOT}: an array of {size} bytes has {elements.source.size}")
    if isinstance(data, Octets):
        before = walk.first_seen(data, path)
        if before is not None:
            yield walk.value(f"{path or ROOT} (memory)", f"the same as of {before}")
    if elements.note:
        yield walk.value(f"{path or ROOT} (kind)", elements.note)
    if elements.fortran and len(shape) > 1:
        yield walk.noise(f"{path or ROOT} (layout)", "Fortran order")
    if not dtype.is_plain:
        note = f"{dtype.text}, shape {shape}"
        yield walk.value(path if dtype.fields or not dtype.size else f"{path or ROOT} (type)", note)
    for name, tensor in columns(dtype, shape, elements):  # named as records are below the name of all of them
        yield walk.tensor(under(path, name), tensor, math.prod(tensor.shape) * 8 if name else size)


def columns(dtype: Dtype, shape: tuple[int, ...], elements: Elements) -> Iterator[tuple[str, Tensor]]:
    """One tensor, or one for each field of records whose fields can be told apart in elements."""
    if dtype.size == 0:
        return  # the shape is a value
    leaves = list(leaves_of(dtype, "", 0)) if dtype.fields else []
    steps = steps_of(shape, elements.fortran)
    if not leaves or any(not leaf.size_of_one or dtype.size % leaf.size_of_one for leaf in leaves):
        plain = not dtype.fields
        inner = steps_of(dtype.shape, False) if plain else ()
        scale = math.prod(dtype.shape) if plain else 1
        strides = (*(step * scale for step in steps), *inner)
        whole = (*shape, *dtype.shape) if plain else shape
        yield "", Tensor("", dtype.elements, whole, elements.source, 0, strides, dtype.big_endian)
        return
    for leaf in leaves:
        scale = dtype.size // leaf.size_of_one
        strides = (*(step * scale for step in steps), *steps_of(leaf.dtype.shape, False))
        whole = (*shape, *leaf.dtype.shape)
        offset = leaf.offset if math.prod(whole) else 0
        yield leaf.name, Tensor("", leaf.dtype.elements, whole, elements.source, offset, strides, leaf.dtype.big_endian)


@dataclass(frozen=True)
class Leaf:
    """A field that is no record itself."""

    name: str
    dtype: Dtype
    offset: int

    @property
    def size_of_one(self) -> int:
        """Bytes of one element of the tensor."""
        return self.dtype.size // max(1, math.prod(self.dtype.shape))


def leaves_of(dtype: Dtype, name: str, offset: int) -> Iterator[Leaf]:
    for column in dtype.fields:
        inner = under(name, column.name or "''")
        if column.dtype.fields:
            yield from leaves_of(column.dtype, inner, offset + column.offset)
        else:
            yield Leaf(inner, column.dtype, offset + column.offset)


def steps_of(shape: tuple[int, ...], fortran: bool) -> tuple[int, ...]:
    """How many elements lie between neighbours of each dimension."""
    steps, step = [], 1
    for length in shape if fortran else reversed(shape):
        steps.append(step)
        step *= max(1, length)
    return tuple(steps) if fortran else tuple(reversed(steps))


def pass_over_dtype(walk: Walk, item: Item) -> None:
    """The types within an array are said by its tensors."""
    if isinstance(item, Object) and item.number in walk.made:
        return
    waiting: list[Item] = [item]
    met: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in met:
            continue
        met.add(id(one))
        if isinstance(one, Object) and one.how is How.CALL:
            walk.pass_over(one)
            waiting += [*one.arguments, *(value for _, _, value in one.changes)]
        elif isinstance(one, Sequence):
            waiting += one.items
        elif isinstance(one, Mapping):
            waiting += [value for _, value in one.items]


def joblib_array(walk: Walk, path: str, item: Array) -> Seen:
    """An array that joblib wrote behind the object that describes it."""
    wrapper = Wrapper.of(item.description, walk.known)
    if wrapper is None:
        raise ArtifactDamaged(f"{path or ROOT}: joblib's description of an array is not understood")
    walk.meet(item.description)
    pass_over_dtype(walk, wrapper.node)
    if item.elements is None:
        text = f"{wrapper.kind} of objects, shape {wrapper.shape}"
        return (walk.value(f"{path or ROOT} (kind)", text),), iter([(path, item.objects)])
    note = "" if wrapper.kind == "numpy.ndarray" else wrapper.kind
    return shown(walk, path, Elements(wrapper.dtype, wrapper.shape, wrapper.fortran, item.elements, note)), None


@dataclass(frozen=True)
class Wrapper:
    """What joblib's NumpyArrayWrapper says of an array."""

    kind: str
    dtype: Dtype
    shape: tuple[int, ...]
    fortran: bool
    alignment: int | None
    node: Item

    @classmethod
    def of(cls, item: Object, known: dict[int, tuple[Item, object]]) -> Wrapper | None:
        """The description, if it is one."""
        state = item.state()
        if not isinstance(state, Mapping) or len(state.items) > len(KNOWN_TO_JOBLIB):
            return None
        said = {key: value for key, value in state.items if isinstance(key, str)}
        kind, alignment = said.get("subclass"), said.get("numpy_array_alignment_bytes")
        shape, dtype = shape_of(said.get("shape")), remembered(said.get("dtype"), known)
        if not said.keys() <= KNOWN_TO_JOBLIB:
            return None
        if not isinstance(kind, Global) or shape is None or dtype is None or said.get("order") not in ("C", "F"):
            return None
        if not (alignment is None or type(alignment) is int) or len(said) != len(state.items):
            return None
        return cls(str(kind), dtype, shape, said["order"] == "F", alignment, said["dtype"])
