"""Recognizes NumPy's arrays, scalars and types among the nodes of a pickle."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from reprokit.artifacts.elements import Part, Source, TensorPart
from reprokit.artifacts.formats.pickle_nodes import GlobalName, Item, LongString, PickledObject, exact
from reprokit.artifacts.formats.pickle_types import NUMPY_DTYPE, ArrayType, shape_of, type_of
from reprokit.artifacts.formats.pickle_walk import ROOT, PickleWalk, Seen, under
from reprokit.artifacts.sources import Memory
from reprokit.artifacts.tensors import strides_of_shape
from reprokit.errors import ArtifactDamaged

CORES = ("numpy.core.", "numpy._core.")
RECONSTRUCT = tuple(f"{core}multiarray._reconstruct" for core in CORES)
SCALAR = tuple(f"{core}multiarray.scalar" for core in CORES)
FROM_BUFFER = tuple(f"{core}numeric._frombuffer" for core in CORES)


@dataclass(frozen=True)
class ArrayElements:
    """The elements of an array."""

    type: ArrayType
    shape: tuple[int, ...]
    fortran: bool
    source: Source
    note: str = ""  # anything but a plain, writable array


def recognize_numpy(walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
    """An array, a scalar or a type of NumPy."""
    if item.called(*RECONSTRUCT):
        return array(walk, path, item)
    if item.function == NUMPY_DTYPE:
        type_ = type_of(item)
        said = f"dtype {type_.text}{' big-endian' if type_.big_endian else ''}" if type_ else ""
        return ((walk.value(path, said),), ()) if said else None
    found, data = None, None
    if item.called(*FROM_BUFFER):
        found, data = of_buffer(item)
    elif item.called(*SCALAR):
        found, data = scalar(item)
    return (shown(walk, path, found, data), ()) if found else None


def array(walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
    """What ndarray.__reduce__ writes."""
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
    source = data_of(data)
    if source is None:
        return None
    return shown(walk, path, ArrayElements(type_, shape, bool(fortran), source, note), data), ()


def objects(walk: PickleWalk, path: str, data: Item, what: str) -> Seen | None:
    """An array of Python objects, which stand in a list."""
    if not isinstance(data, list) or walk.first_seen(data, f"{path or ROOT} (elements)") is not None:
        return None
    said = walk.value(path, f"array of {len(data)} objects, {what}")
    return (said,), ((under(path, str(i)), one) for i, one in enumerate(data))


def of_buffer(item: PickledObject) -> tuple[ArrayElements | None, Item]:
    """What protocol 5 writes for contiguous arrays."""
    if len(item.arguments) != 4 or item.changes or item.keywords is not None:
        return None, None
    data, type_item, shape_item, order = item.arguments
    shape, type_ = shape_of(shape_item), type_of(type_item)
    kind = "bytes" if isinstance(data, bytes) else data.kind if isinstance(data, LongString) else ""
    source = data_of(data)
    if source is None or shape is None or not type_ or not type_.elements or order not in ("C", "F"):
        return None, None
    note = "read-only" if kind == "bytes" or kind.startswith("read-only ") else ""
    return ArrayElements(type_, shape, order == "F", source, note), data


def scalar(item: PickledObject) -> tuple[ArrayElements | None, Item]:
    """One number of a NumPy type."""
    if len(item.arguments) != 2 or item.changes:
        return None, None
    type_, source = type_of(item.arguments[0]), data_of(item.arguments[1])
    if not type_ or not type_.elements or source is None:
        return None, None
    return ArrayElements(type_, (), False, source, "scalar"), item.arguments[1]


def data_of(item: Item) -> Source | None:
    """Where the bytes stand that an array is made of."""
    if isinstance(item, LongString) and item.kind.removeprefix("read-only ") in ("bytes", "string", "bytearray"):
        return item.source
    return Memory(bytes(item)) if isinstance(item, bytes) else None


def shown(walk: PickleWalk, path: str, elements: ArrayElements, data: Item = None) -> Iterator[Part]:
    """An array as tensors, and as values what the tensors do not say."""
    type_, shape = elements.type, elements.shape
    size = math.prod(shape) * type_.size
    if size != elements.source.size:
        raise ArtifactDamaged(f"{path or ROOT}: an array of {size} bytes has {elements.source.size}")
    before = walk.first_seen(data, path) if isinstance(data, LongString) else None
    if before is not None:
        yield walk.value(f"{path or ROOT} (memory)", f"the same as of {before}")
    if elements.note:
        yield walk.value(f"{path or ROOT} (kind)", elements.note)
    if elements.fortran and len(shape) > 1:
        yield walk.noise(f"{path or ROOT} (layout)", "Fortran order")
    if not type_.is_plain:
        name = path if type_.fields or not type_.size else f"{path or ROOT} (type)"
        yield walk.value(name, f"{type_.text}, shape {shape}")
    for name, tensor in columns(elements):  # named as records are below the name of all of them
        yield walk.tensor(under(path, name), tensor, math.prod(tensor.shape) * 8 if name else size)


def columns(elements: ArrayElements) -> Iterator[tuple[str, TensorPart]]:
    """One tensor, or one for each field of records whose fields can be told apart in elements."""
    type_ = elements.type
    leaves = list(type_.leaves())
    if any(not leaf.step or type_.size % leaf.step for _, leaf, _ in leaves):
        leaves = []
    if not leaves and type_.size:  # else the shape is a value
        inner = () if type_.fields else type_.shape
        leaves = [("", ArrayType("", type_.elements, type_.size, type_.big_endian, inner), 0)]
    steps = strides_of_shape(elements.shape, elements.fortran)
    for name, leaf, offset in leaves:
        shape = (*elements.shape, *leaf.shape)
        strides = (*(step * (type_.size // leaf.step) for step in steps), *strides_of_shape(leaf.shape))
        start = offset if math.prod(shape) else 0
        yield name, TensorPart("", leaf.elements, shape, elements.source, start, strides, leaf.big_endian)
