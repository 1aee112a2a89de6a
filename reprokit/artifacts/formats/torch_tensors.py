"""Recognizes PyTorch's tensors among the nodes of a pickle, and shows each by its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reprokit.artifacts.elements import Part, TensorPart
from reprokit.artifacts.formats.pickle_nodes import Creation, GlobalName, Item, PickledDict, PickledObject, exact
from reprokit.artifacts.formats.pickle_types import shape_of
from reprokit.artifacts.formats.pickle_walk import ROOT, PickleWalk, Seen, Step, under
from reprokit.artifacts.formats.torch_storages import Storage, StorageReference, StorageType, dtype, referred
from reprokit.artifacts.tensors import strides_of_shape
from reprokit.errors import ArtifactDamaged

MOST_ARGUMENTS = 8
REBUILD = "torch._utils._rebuild_"
AGAIN_AND_AGAIN = 2  # how often the bytes of a file are shown by views that overlap


@dataclass(frozen=True)
class StorageView:
    """A tensor as PyTorch describes it: a window on a storage, in elements."""

    storage: StorageReference
    type: StorageType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    properties: str = ""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements from the first to the last one."""
        if not self.count:
            return 0
        return 1 + sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether every element between the first and the last one is shown just once."""
        return self.count == self.extent and all(s or n == 1 for n, s in zip(self.shape, self.strides, strict=True))


class TorchTensors:
    """The tensors of one archive, by the storages that they are views of."""

    def __init__(self, storages: dict[str, Storage], size: int, *, big_endian: bool = False):
        self.storages = storages
        self.big_endian = big_endian
        self.room = AGAIN_AND_AGAIN * size
        self.classes: list[tuple[GlobalName, Item]] = []  # with file and source code
        self.references: dict[str, StorageReference] = {}  # one to each storage

    def recognize(self, walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
        """A tensor, a parameter or a storage."""
        if item.creation is Creation.PERSISTENT:
            return self.storage(walk, path, item)
        if item.creation is not Creation.CALL or not isinstance(item.function, GlobalName) or item.keywords is not None:
            return None
        name = str(item.function)
        if name == "torch._tensor._rebuild_from_type_v2":
            return self.of_type(walk, path, item)
        if not name.startswith(REBUILD) or item.changes or len(item.arguments) > MOST_ARGUMENTS:
            return None
        handler = {
            "tensor": self.tensor, "tensor_v2": self.tensor, "tensor_v3": self.tensor, "qtensor": self.quantised,
            "parameter": self.parameter, "parameter_with_state": self.parameter, "sparse_tensor": self.sparse,
        }.get(name.removeprefix(REBUILD))  # fmt: skip
        return handler(walk, path, item) if handler else None

    def tensor(self, walk: PickleWalk, path: str, item: PickledObject, kind: str = "") -> Seen | None:
        """_rebuild_tensor(storage, offset, size, stride, requires_grad, hooks, [dtype,] metadata)"""
        given = list(item.arguments)
        type_ = None
        if str(item.function).endswith("_v3") and len(given) > 6:
            type_ = dtype(given.pop(6))
            if type_ is None:
                return None
        if len(given) not in (4, 6, 7) or (len(given) > 5 and not is_empty(given[5])):
            return None
        view = view_of(given[:4], type_)
        grad = exact(given[4]) if len(given) > 4 else "False"
        if view is None or grad not in ("True", "False"):
            return None
        view = replace(view, properties=f"{kind or 'tensor'}, requires_grad {grad}, on {view.storage.location}")
        metadata = given[6] if len(given) > 6 else None
        return self.shown(walk, path, view), [] if metadata is None else [(under(path, "(metadata)"), metadata)]

    def quantised(self, walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
        """_rebuild_qtensor(storage, offset, size, stride, quantizer_params, requires_grad, hooks)"""
        given = item.arguments
        view = view_of(given[:4], None)
        if len(given) != 7 or view is None or not is_empty(given[6]) or exact(given[5]) is None:
            return None
        view = replace(
            view, properties=f"{view.type.name}, requires_grad {exact(given[5])}, on {view.storage.location}"
        )
        return self.shown(walk, path, view), [(under(path, "(quantizer)"), given[4])]

    def parameter(self, walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
        """_rebuild_parameter(data, requires_grad, hooks), perhaps with a state"""
        given = item.arguments
        if not 3 <= len(given) <= 4 or not isinstance(given[0], PickledObject) or not is_empty(given[2]):
            return None
        if exact(given[1]) is None:
            return None
        data = given[0]
        if not is_plain_tensor(data) or data.changes or id(data) in walk.seen:
            return None
        found = self.tensor(walk, path, data, f"parameter with requires_grad {exact(given[1])} of a tensor")
        if found is None:
            return None
        walk.first_seen(data, under(path, "(data)"))
        parts, below = found
        return parts, [*below, *((under(path, "(state)"), one) for one in given[3:])]

    def sparse(self, walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
        """_rebuild_sparse_tensor(layout, data)"""
        names = {
            "sparse_coo": ("indices", "values", "size", "coalesced"),
            "sparse_csr": ("crow_indices", "col_indices", "values", "size"),
            "sparse_bsr": ("crow_indices", "col_indices", "values", "size"),
            "sparse_csc": ("ccol_indices", "row_indices", "values", "size"),
            "sparse_bsc": ("ccol_indices", "row_indices", "values", "size"),
        }
        if len(item.arguments) != 2:
            return None
        layout, data = layout_of(item.arguments[0]), item.arguments[1]
        if layout not in names or not isinstance(data, tuple) or not 3 <= len(data) <= 4:
            return None
        if walk.first_seen(data, under(path, "(data)")) is not None:
            return None
        said = walk.value(path, f"tensor of layout {layout}, {len(data)} parts")
        first: list[Step] = [(under(path, "(layout)"), item.arguments[0])]
        below = [(under(path, name), one) for name, one in zip(names[layout], data, strict=False)]
        return (said,), [*first, *below]

    def of_type(self, walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
        """_rebuild_from_type_v2(function, type, arguments, state)"""
        if len(item.arguments) != 4 or item.changes:
            return None
        function, type_, given, state = item.arguments
        if not isinstance(given, tuple) or not isinstance(type_, GlobalName) or not isinstance(function, GlobalName):
            return None
        inner = PickledObject(Creation.CALL, function, given)
        found = self.recognize(walk, path, inner) if str(function) != str(item.function) else None
        if found is None:
            return None
        parts, below = found
        steps = [*below, (under(path, "(state)"), state)]
        return [walk.value(f"{path or ROOT} (type)", str(type_)), *parts], steps

    def storage(self, walk: PickleWalk, path: str, item: PickledObject) -> Seen | None:
        """A storage by itself: all of its elements."""
        found = referred(item)
        if found is None:
            return None
        count = found.count if found.view is None else found.view[1]
        kind = "untyped storage" if found.untyped else "storage"
        view = StorageView(found, found.type, 0, (count,), (1,), f"{kind} of {found.type.name}, on {found.location}")
        return self.shown(walk, path, view), ()

    def shown(self, walk: PickleWalk, path: str, view: StorageView) -> Iterator[Part]:
        """The elements of a tensor, and what they alone do not say."""
        storage = self.storages.get(view.storage.key)
        if storage is None:
            raise ArtifactDamaged(f"{path or ROOT}: the file has no storage {view.storage.key[:80]!r}")
        source, before = storage.viewed(view.storage)
        yield walk.value(f"{path or ROOT} (tensor)", f"{view.type.name}, {view.properties}")
        if view.offset < 0 or (view.count and (view.offset + view.extent) * view.type.size > source.size):
            raise ArtifactDamaged(f"{path or ROOT} goes beyond the {source.size} bytes of {storage.name}")
        start = before + view.offset * view.type.size
        size = view.count * view.type.size
        cost = size if storage.first else 0
        yield from self.notes(walk, path, view, storage, start)
        if cost > self.room or size > source.size or not all(view.strides):
            yield from self.whole(walk, path, view, storage)
            return
        self.room -= cost
        if view.is_dense:
            storage.shown.append((start, start + size))
        tensor = TensorPart(
            "", view.type.elements, view.shape, source, view.offset * view.type.size if size else 0, view.strides,
            self.big_endian,
        )  # fmt: skip
        yield walk.tensor(path, tensor, 0)

    def notes(self, walk: PickleWalk, path: str, view: StorageView, storage: Storage, start: int) -> Iterator[Part]:
        """Which storage a tensor shares, which part of it the tensor is, and how it lies there."""
        storage.type = storage.type or view.type
        if storage.first:
            yield walk.value(f"{path or ROOT} (storage)", f"the same as of {storage.first}, from byte {start}")
        else:
            storage.first = under(path, "") or ROOT
            if view.extent * view.type.size != storage.source.size:
                yield walk.value(f"{path or ROOT} (storage)", f"from byte {start} of {storage.source.size}")
        if view.count > 1 and lying(view) != lying(replace(view, strides=strides_of_shape(view.shape))):
            yield walk.noise(f"{path or ROOT} (strides)", f"{view.strides}")

    def whole(self, walk: PickleWalk, path: str, view: StorageView, storage: Storage) -> Iterator[Part]:
        """A view whose elements overlap: how it looks, and all of its storage once."""
        text = f"{view.type.name}, shape {view.shape}, strides {view.strides}, from element {view.offset}"
        yield walk.value(path, f"a view of {text}")
        yield from self.entire(walk, storage)

    def entire(self, walk: PickleWalk, storage: Storage) -> Iterator[Part]:
        """All elements of a storage, once."""
        if storage.entirely or storage.type is None:
            return
        storage.entirely = True
        count, rest = divmod(storage.source.size, storage.type.size)
        name = f"{storage.first} (all of its storage)"
        if rest:
            yield walk.blob(name, storage.source)
        else:
            tensor = TensorPart("", storage.type.elements, (count,), storage.source, 0, None, self.big_endian)
            yield walk.tensor(name, tensor, storage.source.size)

    def rest(self, walk: PickleWalk) -> Iterator[Part]:
        """Storages of which tensors show but a part, and those of which nobody speaks."""
        for key, storage in self.storages.items():
            if not storage.first:
                yield walk.blob(f"(storages)/{key} (unused)", storage.source)
            elif not storage.entirely and not storage.is_shown():
                yield from self.entire(walk, storage)


def lying(view: StorageView) -> tuple[int, ...]:
    """The strides that matter."""
    return tuple(stride for length, stride in zip(view.shape, view.strides, strict=True) if length > 1)


def view_of(given: Sequence[Item], type_: StorageType | None) -> StorageView | None:
    """Storage, offset, size and stride as a view."""
    if len(given) != 4:
        return None
    storage, offset = referred(given[0]), given[1]
    shape, strides = shape_of(given[2]), shape_of(given[3])
    if storage is None or shape is None or strides is None or len(shape) != len(strides) or type(offset) is not int:
        return None
    return StorageView(storage, type_ or storage.type, offset, shape, strides)


def is_plain_tensor(item: PickledObject) -> bool:
    return item.called(*(f"{REBUILD}tensor{version}" for version in ("", "_v2", "_v3")))


def is_empty(item: Item) -> bool:
    """Whether these hooks are none: an empty OrderedDict, which PyTorch always writes."""
    if item is None:
        return True
    if isinstance(item, PickledDict):
        return not item.items
    if not isinstance(item, PickledObject) or not item.called("collections.OrderedDict"):
        return False
    return not (item.arguments or item.changes)


def layout_of(item: Item) -> str:
    """The name of a layout, without its module."""
    if isinstance(item, PickledObject) and item.called("torch.serialization._get_layout") and len(item.arguments) == 1:
        item = item.arguments[0]
    text = item if isinstance(item, str) else str(item) if isinstance(item, GlobalName) else ""
    return text.removeprefix("torch.")
