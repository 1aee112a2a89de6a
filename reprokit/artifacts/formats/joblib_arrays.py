"""Finds the elements of the arrays that joblib writes into a pickle, right behind the objects that describe them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reprokit.artifacts.formats.pickle_nodes import Creation, GlobalName, JoblibArray, PickledDict, PickledObject, exact
from reprokit.artifacts.formats.pickle_numpy import ArrayElements, shown
from reprokit.artifacts.formats.pickle_types import ArrayType, shape_of, type_of
from reprokit.artifacts.formats.pickle_unpickler import InertUnpickler
from reprokit.artifacts.formats.pickle_walk import ROOT, PickleWalk, Seen

WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"
ATTRIBUTES = {"subclass", "shape", "order", "dtype", "allow_mmap", "numpy_array_alignment_bytes"}


@dataclass(frozen=True)
class JoblibLayout:
    """What joblib's NumpyArrayWrapper says of an array."""

    kind: str
    type: ArrayType
    shape: tuple[int, ...]
    fortran: bool
    alignment: int | None


def layout_of(item: PickledObject) -> JoblibLayout | None:
    """The layout that an object describes, if it is such a description."""
    state = item.state()
    if not isinstance(state, PickledDict) or len(state.items) > len(ATTRIBUTES) or item.arguments or item.keywords:
        return None
    said = {key: value for key, value in state.items if isinstance(key, str)}
    kind, alignment = said.get("subclass"), said.get("numpy_array_alignment_bytes")
    shape, type_, order = shape_of(said.get("shape")), type_of(said.get("dtype")), said.get("order")
    if not said.keys() <= ATTRIBUTES or len(said) != len(state.items) or order not in ("C", "F"):
        return None
    if not isinstance(kind, GlobalName) or shape is None or type_ is None or exact(said.get("allow_mmap")) is None:
        return None
    if not (alignment is None or isinstance(alignment, int)):
        return None
    return JoblibLayout(str(kind), type_, shape, order == "F", alignment)


def after_build(item: PickledObject, unpickler: InertUnpickler) -> PickledObject | JoblibArray:
    """The array in place of its description, as joblib's own unpickler does it."""
    is_wrapper = isinstance(item.function, GlobalName) and str(item.function).endswith(WRAPPER)
    if item.creation is not Creation.NEW or not is_wrapper:
        return item
    layout = layout_of(item)
    if layout is None:
        unpickler.fail("joblib's description of an array is not understood")
    if not layout.type.elements:
        return JoblibArray(item, layout, None, unpickler.nested())
    stream = unpickler.stream
    padding = stream.read(1)[0] if layout.alignment is not None else 0
    stream.skip(padding)
    return JoblibArray(item, layout, stream.skip(math.prod(layout.shape) * layout.type.size))


def recognize_joblib(walk: PickleWalk, path: str, item: PickledObject | JoblibArray) -> Seen | None:
    """An array that joblib wrote behind the object that describes it."""
    if not isinstance(item, JoblibArray):
        return None
    layout: JoblibLayout = item.layout
    if item.elements is None:
        text = f"{layout.kind} of objects, shape {layout.shape}"
        return (walk.value(f"{path or ROOT} (kind)", text),), [(path, item.objects)]
    note = "" if layout.kind == "numpy.ndarray" else layout.kind
    return shown(walk, path, ArrayElements(layout.type, layout.shape, layout.fortran, item.elements, note)), ()
