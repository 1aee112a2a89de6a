"""Recognizes NumPy's arrays, scalars and dtypes among the nodes of a pickle."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Part, Source, TensorPart
from reprokit.diff.formats.pickle_nodes import GlobalName, Item, LongString, PickledDict, PickledObject, exact
from reprokit.diff.formats.pickle_walk import ROOT, NodeParts, PickleWalk, under
from reprokit.diff.sources import BytesSource, ColumnSource, piece
from reprokit.diff.tensors import strides_of_shape

NUMPY_DTYPE = GlobalName("numpy", "dtype")
DEEPEST_RECORD = 4
MOST_FIELDS = 4096  # of one dtype, nested fields included
NUMBER_KINDS = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
    "M8": "int64", "m8": "int64",
}  # fmt: skip
_UNIT = re.compile(r"\(b?'([a-zA-Z]+)', ([0-9]{1,9}), 1, 1\)")
MOST_COLUMNS = 256  # fields that are compared apart: all records are read for each
CORES = ("numpy.core.", "numpy._core.")
RECONSTRUCT = tuple(f"{core}multiarray._reconstruct" for core in CORES)
SCALAR = tuple(f"{core}multiarray.scalar" for core in CORES)
FROM_BUFFER = tuple(f"{core}numeric._frombuffer" for core in CORES)


@dataclass(frozen=True)
class ArrayType:
    """A NumPy dtype: its name, and how its elements are compared."""

    text: str  # a complete description except for the byte order
    elements: str  # the dtype of the tensor; empty for Python objects
    size: int
    big_endian: bool = False
    shape: tuple[int, ...] = ()  # of a subarray in each element
    fields: tuple[tuple[str, ArrayType, int], ...] = ()  # name, type and offset
    field_count: int = 1  # nested fields included
    meaning: str = ""  # of elements that are shown as texts or dates: see dtypes.shown
    depth: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the dtype of the tensor is a complete description."""
        return self.text == self.elements

    @property
    def step(self) -> int:
        """The size of one element of the tensor in bytes."""
        return self.size // max(1, math.prod(self.shape))

    def leaves(self, name: str = "", offset: int = 0) -> Iterator[tuple[str, ArrayType, int]]:
        """Yield path, type and offset of the fields that are no records themselves."""
        for field, type_, start in self.fields:
            path = f"{name}/{field or repr('')}" if name else field or repr("")
            if type_.fields:
                yield from type_.leaves(path, offset + start)
            else:
                yield path, type_, offset + start


def type_of(item: Item) -> ArrayType | None:
    """Return the dtype of a node; None if it is not completely understood."""
    type_ = item.array_type if isinstance(item, PickledObject) and len(item.changes) == 1 else None
    return type_ if isinstance(type_, ArrayType) else None


def cost_of(item: PickledObject) -> int:
    """Return the cost of reading a dtype in bytes: many dtypes may share the same fields."""
    state = item.state()
    fields = state[4] if isinstance(state, tuple) and len(state) > 4 else None
    return 100 * len(fields.items) if isinstance(fields, PickledDict) else 0


def array_type(item: PickledObject) -> ArrayType | None:
    """Return the dtype described by a call of numpy.dtype and its state."""
    state = item.state()
    if len(item.arguments) != 3 or not isinstance(state, tuple) or not 8 <= len(state) <= 9:
        return None
    if exact(item.arguments) is None or exact(state[5:8]) is None:  # what is not in the text must not be a call
        return None
    version, order, subtype, names, fields, size, alignment, flags = state[:8]
    unit = unit_of(state[8]) if len(state) == 9 else ""
    if version not in (3, 4) or text_of(order) not in ("<", ">", "|") or unit is None:
        return None
    code, is_big = item.arguments[0], text_of(order) == ">"
    if isinstance(code, GlobalName) and code.module.partition(".")[0] == "ml_dtypes":
        is_plain = code.name.isidentifier() and (subtype, names, fields) == (None, None, None)
        return ArrayType(code.name, code.name, 1 if "8" in code.name else 2, is_big) if is_plain else None
    name = text_of(code)
    if name is None:
        return None
    if subtype is not None:
        return subarray_type(subtype, size)
    if fields is not None or names is not None:
        return record_type(names, fields, size, f"aligned to {exact(alignment)}, flags {exact(flags)}")
    rest = f"{exact(size)}, {exact(alignment)}, {exact(flags)}"
    return simple_type(name, size, is_big, unit, "" if rest == "-1, -1, 0" else f" ({rest})")


def simple_type(code: str, size: Item, is_big: bool, unit: str, suffix: str) -> ArrayType | None:
    """Return a dtype without fields by its code: a letter and the size."""
    kind, digits = code[:1], code[1:]
    if code in NUMBER_KINDS:
        elements = NUMBER_KINDS[code]
        text = f"{'datetime64' if kind == 'M' else 'timedelta64'}{unit}" if kind in "Mm" else f"{elements}{unit}"
        meaning = f"{kind}8{_short_unit(unit)}" if kind in "Mm" else ""
        return ArrayType(f"{text}{suffix}", elements, int(digits), is_big, meaning=meaning)
    if kind == "O":
        return ArrayType(f"object{unit}", "", 8)
    if kind not in "SUVafcg" or not (digits.isascii() and digits.isdigit()) or len(digits) > 7:
        return None
    length = int(digits) * (4 if kind == "U" else 1) if type(size) is not int or size < 0 else size
    text = f"{code}{' big-endian' if is_big else ''}{unit}{suffix}"
    return ArrayType(text, f"raw{length}", length, meaning=text_meaning(kind, is_big=is_big))


def text_meaning(kind: str, *, is_big: bool) -> str:
    """Return what the bytes of a type of this letter mean, for dtypes.shown: texts alone do."""
    return {"U": ">U" if is_big else "<U", "S": "S", "a": "S"}.get(kind, "")


def _short_unit(unit: str) -> str:
    """Return the unit of dates as NumPy writes it, as in [25s]; nothing if it has fractions."""
    match = _UNIT.fullmatch(unit)
    return f"[{'' if match[2] == '1' else match[2]}{match[1]}]" if match is not None else ""


def unit_of(item: Item) -> str | None:
    """Return the unit of dates; None if there is other metadata."""
    if item is None:
        return ""
    if not isinstance(item, tuple) or len(item) != 2:
        return None
    metadata, unit = item
    if not (metadata is None or (isinstance(metadata, PickledDict) and not metadata.items)):
        return None
    return exact(unit) if isinstance(unit, tuple) else None


def subarray_type(subtype: Item, size: Item) -> ArrayType | None:
    """Return a dtype whose elements are subarrays."""
    if not isinstance(subtype, tuple) or len(subtype) != 2:
        return None
    base, shape = type_of(subtype[0]), shape_of(subtype[1])
    if base is None or shape is None or base.fields or base.shape or not base.elements:
        return None
    if size != base.size * math.prod(shape):
        return None
    return ArrayType(f"{base.text} {shape}", base.elements, base.size * math.prod(shape), base.big_endian, shape)


def record_type(names: Item, fields: Item, size: Item, suffix: str) -> ArrayType | None:
    """Return a structured dtype."""
    if not isinstance(names, tuple) or not isinstance(fields, PickledDict) or type(size) is not int:
        return None
    if len(names) != len(fields.items):
        return None
    fields_found = [field_of(key, value) for key, value in fields.items]
    fields_by_name = {field[0]: field for field in fields_found if field is not None}
    order = [text_of(name) for name in names]
    if len(fields_by_name) != len(fields_found) or sorted(fields_by_name) != sorted(name or "" for name in order):
        return None
    columns = tuple(fields_by_name[name] for name in order if name)
    count = 1 + sum(type_.field_count for _, type_, _ in columns)
    depth = 1 + max((type_.depth for _, type_, _ in columns), default=0)
    if count > MOST_FIELDS or depth > DEEPEST_RECORD or any(at + type_.size > size for _, type_, at in columns):
        return None
    text = ", ".join(f"{name!r} {type_.text} at {at}" for name, type_, at in columns)
    text = f"record of {size} bytes ({text}), {suffix}"
    return ArrayType(text, f"raw{size}", size, fields=columns, field_count=count, depth=depth)


def field_of(key: Item, value: Item) -> tuple[str, ArrayType, int] | None:
    name = text_of(key)
    if name is None or not isinstance(value, tuple) or len(value) != 2:
        return None
    type_, offset = type_of(value[0]), value[1]
    if type_ is None or not type_.elements or type(offset) is not int or offset < 0:
        return None
    return name, type_, offset


def text_of(item: Item) -> str | None:
    """Return the text of a str or of bytes; None for others."""
    if isinstance(item, bytes):
        return item.decode("latin-1")
    return item if isinstance(item, str) else None


def shape_of(item: Item) -> tuple[int, ...] | None:
    """Return the shape of an array; None if it is malformed."""
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        return (item,)
    if not isinstance(item, (tuple, list)) or len(item) > 64:
        return None
    lengths = tuple(length for length in item if type(length) is int and 0 <= length < 1 << 63)
    return lengths if len(lengths) == len(item) else None


@dataclass(frozen=True)
class ArrayElements:
    """The elements of an array in a source, with dtype and shape."""

    type: ArrayType
    shape: tuple[int, ...]
    fortran: bool
    source: Source
    note: str = ""  # of anything but a plain, writable array


def recognize_numpy(walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
    """Return the parts of an array, scalar or dtype; None for other objects."""
    if item.called(*RECONSTRUCT):
        return array(walk, path, item)
    if item.function == NUMPY_DTYPE:
        type_ = type_of(item)
        description = f"dtype {type_.text}{' big-endian' if type_.big_endian else ''}" if type_ else ""
        return ((walk.value(path, description),), ()) if description else None
    elements, data = None, None
    if item.called(*FROM_BUFFER):
        elements, data = buffer_elements(item)
    elif item.called(*SCALAR):
        elements, data = scalar_elements(item)
    return (array_parts(walk, path, elements, data), ()) if elements else None


def array(walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
    """Return the parts of an array written by ndarray.__reduce__."""
    state = item.state()
    if len(item.arguments) != 3 or not isinstance(state, tuple) or len(state) != 5:
        return None
    kind, first_shape, letter = item.arguments
    version, shape_item, type_item, fortran, data = state
    shape, type_ = shape_of(shape_item), type_of(type_item)
    if not isinstance(kind, GlobalName) or exact(first_shape) != "(0,)" or version != 1 or shape is None or not type_:
        return None
    if type(fortran) not in (bool, int) or exact(letter) not in ("b'b'", "'b'", "str8 b'b'"):
        return None
    note = "" if str(kind) == "numpy.ndarray" else f"{kind}"
    if not type_.elements:
        return objects(walk, path, data, f"shape {shape}{' in Fortran order' if fortran else ''} {note}".strip())
    source = source_of(data)
    if source is None:
        return None
    return array_parts(walk, path, ArrayElements(type_, shape, bool(fortran), source, note), data), ()


def objects(walk: PickleWalk, path: str, data: Item, description: str) -> NodeParts | None:
    """Return the parts of an array of Python objects, which are stored as a list."""
    if not isinstance(data, list) or walk.first_seen(data, f"{path or ROOT} (elements)") is not None:
        return None
    summary = walk.value(path, f"array of {len(data)} objects, {description}")
    return (summary,), ((under(path, str(i)), element) for i, element in enumerate(data))


def buffer_elements(item: PickledObject) -> tuple[ArrayElements | None, Item]:
    """Return the elements of a contiguous array written by protocol 5."""
    if len(item.arguments) != 4 or item.changes or item.keywords is not None:
        return None, None
    data, type_item, shape_item, order = item.arguments
    shape, type_ = shape_of(shape_item), type_of(type_item)
    kind = "bytes" if isinstance(data, bytes) else data.kind if isinstance(data, LongString) else ""
    source = source_of(data)
    if source is None or shape is None or not type_ or not type_.elements or order not in ("C", "F"):
        return None, None
    note = "read-only" if kind == "bytes" or kind.startswith("read-only ") else ""
    return ArrayElements(type_, shape, order == "F", source, note), data


def scalar_elements(item: PickledObject) -> tuple[ArrayElements | None, Item]:
    """Return the element of a NumPy scalar."""
    if len(item.arguments) != 2 or item.changes:
        return None, None
    type_, source = type_of(item.arguments[0]), source_of(item.arguments[1])
    if not type_ or not type_.elements or source is None:
        return None, None
    return ArrayElements(type_, (), False, source, "scalar"), item.arguments[1]


def source_of(item: Item) -> Source | None:
    """Return the bytes of an array as a source; None if the node is something else."""
    if isinstance(item, LongString) and item.kind.removeprefix("read-only ") in ("bytes", "string", "bytearray"):
        return item.source
    return BytesSource(bytes(item)) if isinstance(item, bytes) else None


def array_parts(walk: PickleWalk, path: str, elements: ArrayElements, data: Item = None) -> Iterator[Part]:
    """Yield an array as tensors, and its other properties as values."""
    type_, shape = elements.type, elements.shape
    size = math.prod(shape) * type_.size
    if size != elements.source.size:
        raise ArtifactDamaged(f"{path or ROOT}: an array of {size} bytes has {elements.source.size}")
    first_path = walk.first_seen(data, path) if isinstance(data, LongString) else None
    if first_path is not None:
        yield walk.value(f"{path or ROOT} (memory)", f"the same as of {first_path}")
    if elements.note:
        yield walk.value(f"{path or ROOT} (kind)", elements.note)
    if elements.fortran and len(shape) > 1:
        yield walk.noise(f"{path or ROOT} (layout)", "Fortran order")
    if not type_.is_plain:
        name = path if type_.fields or not type_.size else f"{path or ROOT} (type)"
        yield walk.value(name, f"{type_.text}, shape {shape}")
    for name, tensor in columns(elements):  # fields of records are named below the array
        yield walk.tensor(under(path, name), tensor, math.prod(tensor.shape) * 8 if name else size)


def columns(elements: ArrayElements) -> Iterator[tuple[str, TensorPart]]:
    """Yield one tensor, or one per field of records."""
    type_, count = elements.type, math.prod(elements.shape)
    leaves = [leaf for leaf in type_.leaves() if leaf[1].size]
    if (not leaves or len(leaves) > MOST_COLUMNS) and type_.size:  # otherwise the shape is a value
        inner = () if type_.fields else type_.shape
        leaves = [("", replace(type_, fields=(), shape=inner), 0)]
    steps = strides_of_shape(elements.shape, elements.fortran)
    for name, leaf, offset in leaves:
        shape, source, items = (*elements.shape, *leaf.shape), elements.source, leaf.size // leaf.step
        if leaf.size != type_.size:
            source = ColumnSource(piece(source, 0, count * type_.size), type_.size, offset, leaf.size)
        strides = (*(step * items for step in steps), *strides_of_shape(leaf.shape))
        yield name, TensorPart("", leaf.elements, shape, source, 0, strides, leaf.big_endian, leaf.meaning)
