"""Reads pickles, also several in one file, and those of joblib, without executing them.

joblib writes the elements of an array right after the object that describes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from reprokit.core.difference import BookkeepingKind
from reprokit.diff.elements import Limits, Noise, Part, Source, Value
from reprokit.diff.formats import PICKLE
from reprokit.diff.formats.pickle_nodes import (
    Creation,
    GlobalName,
    Item,
    JoblibArray,
    PickledDict,
    PickledObject,
    exact,
)
from reprokit.diff.formats.pickle_numpy import ArrayElements, array_parts, recognize_numpy, shape_of, type_of
from reprokit.diff.formats.pickle_unpickler import InertUnpickler
from reprokit.diff.formats.pickle_walk import ROOT, NodeParts, PickleWalk
from reprokit.diff.sources import ForwardReader, piece

MOST = 10_000  # pickles in one file
WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"
ATTRIBUTES = {"subclass", "shape", "order", "dtype", "allow_mmap", "numpy_array_alignment_bytes"}
MODELS = "gensim.models."  # its classes
SECONDS = re.compile(r"/total_train_time\Z"), re.compile(r"[0-9.e+-]+")
DATE = re.compile(r"/lifecycle_events/[0-9]+/datetime\Z"), re.compile(r"'[0-9T:.+-]+'")
MESSAGE = re.compile(r"/lifecycle_events/[0-9]+/msg\Z"), re.compile(r"('.*?) (took [0-9.]+s, [0-9.]+ [\w ]+/s)'")


def after_build(item: PickledObject, unpickler: InertUnpickler) -> PickledObject | JoblibArray:
    """Replace the description of an array by the array, as joblib's own unpickler does."""
    is_wrapper = isinstance(item.function, GlobalName) and str(item.function).endswith(WRAPPER)
    if item.creation is not Creation.NEW or not is_wrapper:
        return item
    state = item.state()
    items = state.items if isinstance(state, PickledDict) and len(state.items) <= len(ATTRIBUTES) else []
    facts = {key: value for key, value in items if isinstance(key, str)}
    kind, alignment = facts.get("subclass"), facts.get("numpy_array_alignment_bytes")
    shape, type_, order = shape_of(facts.get("shape")), type_of(facts.get("dtype")), facts.get("order")
    is_known = facts.keys() <= ATTRIBUTES and len(facts) == len(items) and not (item.arguments or item.keywords)
    is_known = is_known and order in ("C", "F") and exact(facts.get("allow_mmap")) is not None
    is_known = is_known and (alignment is None or isinstance(alignment, int))
    if not is_known or not isinstance(kind, GlobalName) or shape is None or type_ is None:
        unpickler.fail("joblib's description of an array is not understood")
    if not type_.elements:
        return JoblibArray(item, None, f"{kind} of objects, shape {shape}", unpickler.nested())
    stream = unpickler.stream
    stream.skip(stream.read(1)[0] if alignment is not None else 0)
    elements = stream.skip(math.prod(shape) * type_.size)
    note = "" if str(kind) == "numpy.ndarray" else str(kind)
    return JoblibArray(item, ArrayElements(type_, shape, order == "F", elements, note))


def recognize_joblib(walk: PickleWalk, path: str, item: PickledObject | JoblibArray) -> NodeParts | None:
    """Return the parts of an array of joblib; None for other nodes."""
    if not isinstance(item, JoblibArray):
        return None
    if item.array is None:
        return (walk.value(f"{path or ROOT} (kind)", item.kind),), [(path, item.objects)]
    return array_parts(walk, path, item.array), ()


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the parts of each pickle in the file."""
    stream = ForwardReader(source, "the pickle")
    walk = PickleWalk(limits, source.size, (recognize_joblib, recognize_numpy))
    for number in range(1, MOST + 1):
        unpickler = InertUnpickler(stream, limits, after_build=after_build)
        root = unpickler.load()
        parts = unpickler.parts(walk, root, f"({number})" if number > 1 else "")
        yield from without_timings(parts) if is_model(root) else parts
        at = stream.at
        if not re.match(PICKLE, source.read(at, 4), re.DOTALL):
            break
    if at < source.size:
        yield walk.blob("(after the end)", piece(source, at, source.size - at))


def is_model(item: Item) -> bool:
    """Return whether a pickle's object is a model of gensim."""
    function = item.function if isinstance(item, PickledObject) else None
    return isinstance(function, GlobalName) and str(function).startswith(MODELS)


def without_timings(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of a model, whose timings are bookkeeping."""
    for part in parts:
        yield from _split(part) if isinstance(part, Value) else (part,)


def _split(part: Value) -> Iterator[Part]:
    """Yield a value of a model, or what of it is a timing."""
    message = MESSAGE[1].fullmatch(part.text) if MESSAGE[0].search(part.name) else None
    if message is not None:
        yield Value(part.name, f"{message[1]}'")
        yield Noise(f"{part.name} (speed)", message[2], BookkeepingKind.RATE)
    elif _is(part, *SECONDS):
        yield Noise(part.name, part.text, BookkeepingKind.DURATION)
    elif _is(part, *DATE):
        yield Noise(part.name, part.text, BookkeepingKind.DATE)
    else:
        yield part


def _is(part: Value, name: re.Pattern[str], text: re.Pattern[str]) -> bool:
    return name.search(part.name) is not None and text.fullmatch(part.text) is not None
