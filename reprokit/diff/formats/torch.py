"""Reads the files of torch.save and torch.jit.save: zip archives, and the older stream of pickles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from reprokit.core import dtypes
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Noise, Part, Source, TensorPart
from reprokit.diff.formats import zip as zip_format
from reprokit.diff.formats.pickle_nodes import Creation, GlobalName, Item, OldString, PickledDict, PickledObject, exact
from reprokit.diff.formats.pickle_numpy import recognize_numpy, shape_of
from reprokit.diff.formats.pickle_unpickler import InertUnpickler
from reprokit.diff.formats.pickle_walk import ROOT, NodeParts, PickleWalk, Step, under
from reprokit.diff.formats.zip import ZipMember
from reprokit.diff.sources import ForwardReader, piece, read_whole
from reprokit.diff.tensors import strides_of_shape

PICKLES = ("data", "constants")  # each with a directory of storages of the same name
MAIN = ("data.pkl", "archive_format")  # the members that name the directory: the pickle, and that of a .pt2
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001  # of the stream
SHORT = 100
MOST_ARGUMENTS = 8
MODULE_FIELDS = 4
REBUILD = "torch._utils._rebuild_"
MOST_OVERLAP = 2  # how many times the size of a file overlapping views may add up to


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the parts of a file in either format."""
    read_format = read_archive if source.read(0, 2) == b"PK" else read_stream
    return read_format(source, limits)


def read_archive(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the parts of an archive: one or two pickles, their storages, and the code of TorchScript.

    An exported program (.pt2) is an archive whose members are read like those of other archives.
    """
    archive = zip_format.open_archive(source, limits)
    top = top_of(archive.members)
    if top is None:
        yield from zip_format.parts(archive)
        return
    renamed = [replace(member, name=member.name.removeprefix(top)) for member in archive.members]
    members = {member.name: member for member in renamed}
    if len(members) < len(renamed):
        raise ArtifactDamaged("two of its members have the same name")
    yield Noise("(name of the archive)", top)
    yield from replace(archive, members=renamed).around()
    is_big = byte_order(members) == "big"
    used = {"byteorder", ".data/serialization_id", ".storage_alignment"}
    for name in PICKLES:
        if f"{name}.pkl" in members:
            storages = storages_of(name, members)
            used |= {f"{name}.pkl", *(storage.name for storage in storages.values())}
            prefix = "" if name == "data" else f"({name})"
            yield from archive_pickle(members[f"{name}.pkl"], storages, limits, is_big, prefix)
    for name, member in members.items():
        if name in used:
            continue
        if name in ("version", ".format_version"):
            yield Noise(f"({name})", read_whole(member.source, SHORT, name).decode("latin-1").strip())
        else:
            yield zip_format.part(member)
    for name in sorted(used & members.keys()):
        if name.startswith(".") or name == "byteorder":
            yield Noise(f"({name})", read_whole(members[name].source, 4096, name).decode("latin-1"))


def top_of(members: list[ZipMember]) -> str | None:
    """Return the directory of all members of an archive of PyTorch, the archive's name; None for another archive."""
    main = (member.name.removesuffix(name) for member in members for name in MAIN if is_main(member.name, name))
    top = next(main, None)
    return None if top is None or any(not member.name.startswith(top) for member in members) else top


def is_main(name: str, expected: str = "data.pkl") -> bool:
    """Return whether a member is the main one of an archive: of this name, in its only directory."""
    return name == expected or (name.endswith(f"/{expected}") and name.count("/") == 1)


def byte_order(members: dict[str, ZipMember]) -> str:
    if "byteorder" not in members:
        return "little"
    order = read_whole(members["byteorder"].source, SHORT, "byteorder").decode("latin-1").strip()
    if order not in ("little", "big"):
        raise ArtifactDamaged(f"byteorder is {order[:40]!r}")
    return order


def storages_of(name: str, members: dict[str, ZipMember]) -> dict[str, Storage]:
    """Return the storages of a pickle by key."""
    start = f"{name}/"
    return {
        key.removeprefix(start): Storage(member.source, key)
        for key, member in members.items()
        if key.startswith(start) and not member.is_directory
    }


def archive_pickle(
    member: ZipMember, storages: dict[str, Storage], limits: Limits, big_endian: bool, prefix: str
) -> Iterator[Part]:
    """Yield the objects of one pickle of an archive, then its unused storages."""
    size = member.source.size + sum(storage.source.size for storage in storages.values())
    tensors = TorchTensors(storages, size, big_endian=big_endian)
    try:
        loaded = InertUnpickler(ForwardReader(member.source, "the pickle"), limits, tensors.persistent_load)
        walk = new_walk(tensors, limits, size)
        yield from pickle_parts(walk, tensors, loaded, loaded.load(), prefix)
    except ArtifactDamaged as error:
        raise ArtifactDamaged(f"{member.name[:80]}: {error}") from None


def new_walk(tensors: TorchTensors, limits: Limits, size: int) -> PickleWalk:
    """Return a walk that recognizes tensors and arrays."""
    return PickleWalk(limits, size, (tensors.recognize, recognize_numpy))


def pickle_parts(
    walk: PickleWalk, tensors: TorchTensors, loaded: InertUnpickler, root: Item, prefix: str = ""
) -> Iterator[Part]:
    """Yield a pickle, the source code of classes in old files, and bytes that are in no tensor."""
    yield from loaded.parts(walk, root, prefix)
    for class_, pair in tensors.classes:
        yield from walk.tree(under(prefix, f"(source of {str(class_)[:SHORT]})"), pair)
    yield from tensors.rest(walk)
    source, end = loaded.stream.source, loaded.stream.at
    if end < source.size:
        yield walk.blob(under(prefix, "(after the end)"), piece(source, end, source.size - end))


def read_stream(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the parts of a stream, as torch.save wrote it before 1.6.

    It has magic number, version, system, object, keys, then for each storage the number of elements and the elements.
    """
    stream = ForwardReader(source, "the file")
    tensors = TorchTensors({}, source.size)
    magic, version, system = (InertUnpickler(stream, limits).load() for _ in range(3))
    if (magic, version) != (MAGIC, VERSION):
        raise ArtifactDamaged("it does not begin like a file of torch.save")
    loaded = InertUnpickler(stream, limits, tensors.persistent_load)
    root = loaded.load()
    for key in keys_of(InertUnpickler(stream, limits).load()):
        if key not in tensors.references or key in tensors.storages:
            raise ArtifactDamaged(f"no tensor speaks of its storage {key[:80]!r}, or it is there twice")
        name = f"storage {len(tensors.storages)}"
        count, size = int.from_bytes(stream.read(8), "little", signed=True), tensors.references[key].type.size
        if not 0 <= count * size <= source.size - stream.at:
            left = source.size - stream.at
            raise ArtifactDamaged(f"{name} is to have {count} elements of {size} bytes, and {left} bytes are left")
        tensors.storages[key] = Storage(stream.skip(count * size), name)
    walk = new_walk(tensors, limits, source.size)
    yield from system_parts(walk, system)
    yield from pickle_parts(walk, tensors, loaded, root)


def system_parts(walk: PickleWalk, system: Item) -> Iterator[Part]:
    """Yield facts about the machine that wrote the file: noise, as the numbers are always little-endian."""
    expected = [("protocol_version", VERSION), ("little_endian", True)]
    if isinstance(system, PickledDict) and system.items[:2] == expected and len(system.items) == 3:
        name, sizes = system.items[2]
        if name == "type_sizes" and isinstance(sizes, PickledDict) and len(sizes.items) < 10:
            texts = [f"{exact(key)}: {exact(value)}" for key, value in sizes.items]
            yield Noise(walk.named("(system)"), ", ".join(texts))
            return
    yield from walk.tree("(system)", system)


def keys_of(item: Item) -> list[str]:
    """Return the keys of the storages that follow, in order."""
    if not isinstance(item, list):
        raise ArtifactDamaged("its storages have no list of keys")
    keys = [text(key) for key in item]
    texts = [key for key in keys if key is not None]
    if len(texts) < len(keys):
        raise ArtifactDamaged("the key of a storage is no text")
    return texts


@dataclass(frozen=True)
class StorageType:
    """An element type: its name in PyTorch, and the dtype by which it is compared."""

    name: str
    elements: str

    @property
    def size(self) -> int:
        return dtypes.named(self.elements).element_size


_SAME = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex128", "complex64", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip


_PACKED = ("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "float4_e2m1fn_x2")


_SUB_BYTE = [f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)]


_ELEMENTS = {
    **{name: name for name in _SAME},
    **dict.fromkeys((*_PACKED, *_SUB_BYTE), "uint8"),
    "qint8": "int8",
    "quint8": "uint8",
    "qint32": "int32",
    "bits16": "uint16",
}


TYPES = {name: StorageType(name, elements) for name, elements in _ELEMENTS.items()}


STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "ComplexHalf": "complex32", "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32",
    "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4", "Untyped": "uint8",
}  # fmt: skip


def storage_type(item: Item) -> StorageType | None:
    """Return the element type of a storage class, such as torch.FloatStorage or torch.cuda.FloatStorage."""
    if not isinstance(item, GlobalName) or item.module.partition(".")[0] != "torch":
        return None
    if not item.name.endswith("Storage"):
        return None
    return TYPES.get(STORAGES.get(item.name.removesuffix("Storage"), ""))


def dtype(item: Item) -> StorageType | None:
    """Return the element type of a name such as torch.float8_e5m2."""
    return TYPES.get(item.name) if isinstance(item, GlobalName) and item.module == "torch" else None


def text(item: Item) -> str | None:
    """Return the text of a str, also of one written by Python 2; None for others."""
    if isinstance(item, OldString):
        return item.decode("ascii", "backslashreplace")
    return item if isinstance(item, str) else None


@dataclass(frozen=True)
class StorageReference:
    """A reference to a storage in a pickle: its key in the archive, and optionally a view of it."""

    type: StorageType
    key: str
    location: str
    count: int
    view: tuple[int, int] | None = None  # first element and number of elements
    untyped: bool = False


def reference(item: Item) -> StorageReference | None:
    """Parse a persistent id as a reference to a storage; None for others."""
    if not isinstance(item, tuple) or not 5 <= len(item) <= 6:
        return None
    kind, type_, key, location, count = item[:5]
    dtype_, name, place = storage_type(type_), text(key), text(location)
    view = range_of(item[5]) if len(item) == 6 else None
    if (
        text(kind) != "storage"
        or dtype_ is None
        or name is None
        or place is None
        or type(count) is not int
        or count < 0
    ):
        return None
    untyped = isinstance(type_, GlobalName) and type_.name == "UntypedStorage"
    return None if view == (-1, -1) else StorageReference(dtype_, name, place, count, view, untyped)


def range_of(item: Item) -> tuple[int, int] | None:
    """Return first element and number of elements of a view; (-1, -1) if it is malformed."""
    if item is None:
        return None
    if isinstance(item, tuple) and len(item) == 3 and exact(item) is not None:
        _, start, count = item
        if type(start) is int and type(count) is int and start >= 0 and count >= 0:
            return start, count
    return (-1, -1)


def referenced_storage(item: Item) -> StorageReference | None:
    """Return the reference to a storage that a node is, else None."""
    if isinstance(item, PickledObject) and item.creation is Creation.PERSISTENT and not item.changes:
        return reference(item.arguments[0])
    return None


@dataclass(eq=False)
class Storage:
    """The bytes of a storage, and the ranges of them in tensors so far."""

    source: Source
    name: str  # in the file
    first: str = ""  # the name of the first tensor on it
    type: StorageType | None = None
    shown: list[tuple[int, int]] = field(default_factory=list)  # byte ranges
    is_complete: bool = False  # whether all of it was yielded

    def is_shown(self) -> bool:
        """Return whether each byte is in some tensor."""
        end = 0
        for start, stop in sorted(self.shown):
            if start > end:
                return False
            end = max(end, stop)
        return end >= self.source.size

    def view(self, view: StorageReference) -> tuple[Source, int]:
        """Return the bytes of a reference, and their offset in the storage."""
        size = view.count * view.type.size
        if size != self.source.size:
            raise ArtifactDamaged(f"{self.name} has {self.source.size} bytes, a tensor says {size}")
        if view.view is None:
            return self.source, 0
        start, count = (number * view.type.size for number in view.view)
        return piece(self.source, start, count), start


@dataclass(frozen=True)
class StorageView:
    """A tensor as PyTorch describes it: a strided view of a storage, in elements."""

    storage: StorageReference
    type: StorageType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """The number of elements from the first to the last one, gaps included."""
        if not self.count:
            return 0
        return 1 + sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether the view has neither gaps nor overlaps."""
        return self.count == self.extent and all(s or n == 1 for n, s in zip(self.shape, self.strides, strict=True))


class TorchTensors:
    """Recognizes the tensors of one archive as views of its storages."""

    def __init__(self, storages: dict[str, Storage], size: int, *, big_endian: bool = False):
        self.storages = storages
        self.big_endian = big_endian
        self.room = MOST_OVERLAP * size
        self.classes: list[tuple[GlobalName, Item]] = []  # classes of modules, with file and source code
        self.references: dict[str, StorageReference] = {}  # by key of the storage

    def persistent_load(self, identity: Item) -> Item:
        """Resolve a persistent id: record storages; return the class of a module saved with its source code."""
        storage = reference(identity)
        if storage is not None:
            self.references.setdefault(storage.key, storage)
        if isinstance(identity, tuple) and len(identity) == MODULE_FIELDS and text(identity[0]) == "module":
            _, class_, file, code = identity
            if isinstance(class_, GlobalName):
                self.classes.append((class_, (file, code)))
                return class_
        return None

    def recognize(self, walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
        """Return the parts of a tensor, parameter or storage; None for other objects."""
        if item.creation is Creation.PERSISTENT:
            return self.storage(walk, path, item)
        if item.creation is not Creation.CALL or not isinstance(item.function, GlobalName) or item.keywords is not None:
            return None
        name = str(item.function)
        if name == "torch._tensor._rebuild_from_type_v2":
            return self.subclass(walk, path, item)
        if not name.startswith(REBUILD) or item.changes or len(item.arguments) > MOST_ARGUMENTS:
            return None
        handler = {
            "tensor": self.tensor, "tensor_v2": self.tensor, "tensor_v3": self.tensor, "qtensor": self.quantized,
            "parameter": self.parameter, "parameter_with_state": self.parameter, "sparse_tensor": self.sparse,
        }.get(name.removeprefix(REBUILD))  # fmt: skip
        return handler(walk, path, item) if handler else None

    def tensor(self, walk: PickleWalk, path: str, item: PickledObject, kind: str = "") -> NodeParts | None:
        """_rebuild_tensor(storage, offset, size, stride, requires_grad, hooks, [dtype,] metadata)"""
        arguments = list(item.arguments)
        type_ = None
        if str(item.function).endswith("_v3") and len(arguments) > 6:
            type_ = dtype(arguments.pop(6))
            if type_ is None:
                return None
        if len(arguments) not in (4, 6, 7) or (len(arguments) > 5 and not is_empty(arguments[5])):
            return None
        view = view_of(arguments[:4], type_)
        grad = exact(arguments[4]) if len(arguments) > 4 else "False"
        if view is None or grad not in ("True", "False"):
            return None
        metadata = arguments[6] if len(arguments) > 6 else None
        parts = self.tensor_parts(walk, path, view, f"{kind or 'tensor'}, requires_grad {grad}")
        return parts, [] if metadata is None else [(under(path, "(metadata)"), metadata)]

    def quantized(self, walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
        """_rebuild_qtensor(storage, offset, size, stride, quantizer_params, requires_grad, hooks)"""
        arguments = item.arguments
        view = view_of(arguments[:4], None)
        if len(arguments) != 7 or view is None or not is_empty(arguments[6]) or exact(arguments[5]) is None:
            return None
        description = f"{view.type.name}, requires_grad {exact(arguments[5])}"
        return self.tensor_parts(walk, path, view, description), [(under(path, "(quantizer)"), arguments[4])]

    def parameter(self, walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
        """_rebuild_parameter(data, requires_grad, hooks), perhaps with a state"""
        arguments = item.arguments
        if not 3 <= len(arguments) <= 4 or not isinstance(arguments[0], PickledObject) or not is_empty(arguments[2]):
            return None
        if exact(arguments[1]) is None:
            return None
        data = arguments[0]
        is_plain = data.called(*(f"{REBUILD}tensor{version}" for version in ("", "_v2", "_v3")))
        if not is_plain or data.changes or id(data) in walk.seen:
            return None
        tensor = self.tensor(walk, path, data, f"parameter with requires_grad {exact(arguments[1])} of a tensor")
        if tensor is None:
            return None
        walk.first_seen(data, under(path, "(data)"))
        parts, below = tensor
        return parts, [*below, *((under(path, "(state)"), state) for state in arguments[3:])]

    def sparse(self, walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
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
        summary = walk.value(path, f"tensor of layout {layout}, {len(data)} parts")
        layout_step: list[Step] = [(under(path, "(layout)"), item.arguments[0])]
        below = [(under(path, name), component) for name, component in zip(names[layout], data, strict=False)]
        return (summary,), [*layout_step, *below]

    def subclass(self, walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
        """_rebuild_from_type_v2(function, type, arguments, state)"""
        if len(item.arguments) != 4 or item.changes:
            return None
        function, type_, inputs, state = item.arguments
        if not isinstance(inputs, tuple) or not isinstance(type_, GlobalName) or not isinstance(function, GlobalName):
            return None
        inner = PickledObject(Creation.CALL, function, inputs)
        base = self.recognize(walk, path, inner) if str(function) != str(item.function) else None
        if base is None:
            return None
        parts, below = base
        steps = [*below, (under(path, "(state)"), state)]
        return [walk.value(f"{path or ROOT} (type)", str(type_)), *parts], steps

    def storage(self, walk: PickleWalk, path: str, item: PickledObject) -> NodeParts | None:
        """Return the parts of a storage object: all of its elements."""
        storage = referenced_storage(item)
        if storage is None:
            return None
        count = storage.count if storage.view is None else storage.view[1]
        kind = "untyped storage" if storage.untyped else "storage"
        view = StorageView(storage, storage.type, 0, (count,), (1,))
        return self.tensor_parts(walk, path, view, f"{kind} of {storage.type.name}"), ()

    def tensor_parts(self, walk: PickleWalk, path: str, view: StorageView, description: str) -> Iterator[Part]:
        """Yield the elements of a tensor, and its properties as values."""
        storage = self.storages.get(view.storage.key)
        if storage is None:
            raise ArtifactDamaged(f"{path or ROOT}: the file has no storage {view.storage.key[:80]!r}")
        source, storage_start = storage.view(view.storage)
        yield walk.value(f"{path or ROOT} (tensor)", f"{view.type.name}, {description}, on {view.storage.location}")
        if view.offset < 0 or (view.count and (view.offset + view.extent) * view.type.size > source.size):
            raise ArtifactDamaged(f"{path or ROOT} goes beyond the {source.size} bytes of {storage.name}")
        start = storage_start + view.offset * view.type.size
        size = view.count * view.type.size
        cost = size if storage.first else 0
        yield from self.notes(walk, path, view, storage, start)
        if cost > self.room or size > source.size or not all(view.strides):
            yield from self.overlapping_view(walk, path, view, storage)
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
        """Yield whether a tensor shares its storage, its offset, and unusual strides."""
        storage.type = storage.type or view.type
        if storage.first:
            yield walk.value(f"{path or ROOT} (storage)", f"the same as of {storage.first}, from byte {start}")
        else:
            storage.first = under(path, "") or ROOT
            if view.extent * view.type.size != storage.source.size:
                yield walk.value(f"{path or ROOT} (storage)", f"from byte {start} of {storage.source.size}")
        if view.count > 1 and used_strides(view) != used_strides(replace(view, strides=strides_of_shape(view.shape))):
            yield walk.noise(f"{path or ROOT} (strides)", f"{view.strides}")

    def overlapping_view(self, walk: PickleWalk, path: str, view: StorageView, storage: Storage) -> Iterator[Part]:
        """Yield an overlapping view: its geometry, and all of its storage once."""
        text = f"{view.type.name}, shape {view.shape}, strides {view.strides}, from element {view.offset}"
        yield walk.value(path, f"a view of {text}")
        yield from self.all_elements(walk, storage)

    def all_elements(self, walk: PickleWalk, storage: Storage) -> Iterator[Part]:
        """Yield all elements of a storage, unless done already."""
        if storage.is_complete or storage.type is None:
            return
        storage.is_complete = True
        count, rest = divmod(storage.source.size, storage.type.size)
        name = f"{storage.first} (all of its storage)"
        if rest:
            yield walk.blob(name, storage.source)
        else:
            tensor = TensorPart("", storage.type.elements, (count,), storage.source, 0, None, self.big_endian)
            yield walk.tensor(name, tensor, storage.source.size)

    def rest(self, walk: PickleWalk) -> Iterator[Part]:
        """Yield the storages that are only partly in tensors, and those without a tensor."""
        for key, storage in self.storages.items():
            if not storage.first:
                yield walk.blob(f"(storages)/{key} (unused)", storage.source)
            elif not storage.is_complete and not storage.is_shown():
                yield from self.all_elements(walk, storage)


def used_strides(view: StorageView) -> tuple[int, ...]:
    """Return the strides of dimensions longer than one."""
    return tuple(stride for length, stride in zip(view.shape, view.strides, strict=True) if length > 1)


def view_of(arguments: Sequence[Item], type_: StorageType | None) -> StorageView | None:
    """Return storage, offset, size and stride as a view; None if they are malformed."""
    if len(arguments) != 4:
        return None
    storage, offset = referenced_storage(arguments[0]), arguments[1]
    shape, strides = shape_of(arguments[2]), shape_of(arguments[3])
    if storage is None or shape is None or strides is None or len(shape) != len(strides) or type(offset) is not int:
        return None
    return StorageView(storage, type_ or storage.type, offset, shape, strides)


def is_empty(item: Item) -> bool:
    """Return whether there are no hooks: None, or the empty OrderedDict that PyTorch always writes."""
    if item is None:
        return True
    if isinstance(item, PickledDict):
        return not item.items
    if not isinstance(item, PickledObject) or not item.called("collections.OrderedDict"):
        return False
    return not (item.arguments or item.changes)


def layout_of(item: Item) -> str:
    """Return the name of a layout, without its module."""
    if isinstance(item, PickledObject) and item.called("torch.serialization._get_layout") and len(item.arguments) == 1:
        item = item.arguments[0]
    text = item if isinstance(item, str) else str(item) if isinstance(item, GlobalName) else ""
    return text.removeprefix("torch.")
