"""The storages of PyTorch: their types, the bytes behind them, and which of these bytes tensors show."""

from __future__ import annotations

from dataclasses import dataclass, field

from reprokit.artifacts.elements import Source
from reprokit.artifacts.formats.pickle_nodes import Creation, GlobalName, Item, OldString, PickledObject, exact
from reprokit.artifacts.sources import piece
from reprokit.errors import ArtifactDamaged


@dataclass(frozen=True)
class StorageType:
    """A type of elements: what PyTorch calls it, and what a tensor of the comparison does."""

    name: str
    elements: str
    size: int


def _types() -> dict[str, StorageType]:
    sizes = {
        "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
        "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex128": 16, "complex64": 8, "complex32": 4,
        "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    }  # fmt: skip
    types = {name: StorageType(name, name, size) for name, size in sizes.items()}
    quantised = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
    types |= {name: StorageType(name, elements, sizes[elements]) for name, elements in quantised.items()}
    bytewise = ["quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "float4_e2m1fn_x2"]
    bytewise += [f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)]
    types |= {name: StorageType(name, "uint8", 1) for name in bytewise}
    types["bits16"] = StorageType("bits16", "uint16", 2)
    return types


TYPES = _types()
STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "ComplexHalf": "complex32", "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32",
    "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4", "Untyped": "uint8",
}  # fmt: skip


def storage_type(item: Item) -> StorageType | None:
    """The type of a class of storages, such as torch.FloatStorage or torch.cuda.FloatStorage."""
    if not isinstance(item, GlobalName) or item.module.partition(".")[0] != "torch":
        return None
    if not item.name.endswith("Storage"):
        return None
    return TYPES.get(STORAGES.get(item.name.removesuffix("Storage"), ""))


def dtype(item: Item) -> StorageType | None:
    """The type that a name such as torch.float8_e5m2 means."""
    return TYPES.get(item.name) if isinstance(item, GlobalName) and item.module == "torch" else None


def text(item: Item) -> str | None:
    """Text, also as Python 2 wrote it."""
    if isinstance(item, OldString):
        return item.decode("ascii", "backslashreplace")
    return item if isinstance(item, str) else None


@dataclass(frozen=True)
class StorageReference:
    """What a pickle says of a storage: its key in the archive, and which part of it."""

    type: StorageType
    key: str
    location: str
    count: int
    view: tuple[int, int] | None = None  # first element and number of them
    untyped: bool = False


def reference(item: Item) -> StorageReference | None:
    """The storage that a persistent id means; None for anything else."""
    if not isinstance(item, tuple) or not 5 <= len(item) <= 6:
        return None
    kind, type_, key, location, count = item[:5]
    found, name, place = storage_type(type_), text(key), text(location)
    view = view_of(item[5]) if len(item) == 6 else None
    if text(kind) != "storage" or found is None or name is None or place is None or type(count) is not int or count < 0:
        return None
    untyped = isinstance(type_, GlobalName) and type_.name == "UntypedStorage"
    return None if view == (-1, -1) else StorageReference(found, name, place, count, view, untyped)


def view_of(item: Item) -> tuple[int, int] | None:
    """First element and number of elements of a view; (-1, -1) for what is none."""
    if item is None:
        return None
    if isinstance(item, tuple) and len(item) == 3 and exact(item) is not None:
        _, start, count = item
        if type(start) is int and type(count) is int and start >= 0 and count >= 0:
            return start, count
    return (-1, -1)


def referred(item: Item) -> StorageReference | None:
    """The storage that a node stands for."""
    if isinstance(item, PickledObject) and item.creation is Creation.PERSISTENT and not item.changes:
        return reference(item.arguments[0])
    return None


@dataclass(eq=False)
class Storage:
    """The bytes of a storage, and what has been shown of them so far."""

    source: Source
    name: str  # in the file
    first: str = ""  # tensor that showed it
    type: StorageType | None = None
    shown: list[tuple[int, int]] = field(default_factory=list)  # byte ranges
    entirely: bool = False  # it was shown as a whole

    def is_shown(self) -> bool:
        """Whether every byte was shown by some tensor."""
        end = 0
        for start, stop in sorted(self.shown):
            if start > end:
                return False
            end = max(end, stop)
        return end >= self.source.size

    def viewed(self, found: StorageReference) -> tuple[Source, int]:
        """The bytes that a reference means, and where in the storage they begin."""
        size = found.count * found.type.size
        if size != self.source.size:
            raise ArtifactDamaged(f"{self.name} has {self.source.size} bytes, a tensor says {size}")
        if found.view is None:
            return self.source, 0
        start, count = (number * found.type.size for number in found.view)
        return piece(self.source, start, count), start
