"""The formats of torch.save before 1.6: a stream of pickles and storages, and before 0.2 a tar of three files."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.formats import tar
from reprokit.artifacts.formats.pickle import protocol
from reprokit.artifacts.formats.pickle_machine import Cursor, Machine
from reprokit.artifacts.formats.pickle_nodes import Item, Mapping, Object, Sequence, exact
from reprokit.artifacts.formats.pickle_walk import Seen, Walk
from reprokit.artifacts.formats.torch_objects import load, sources_of, walk_of
from reprokit.artifacts.formats.torch_storages import Reference, Storage, storage_type, text
from reprokit.artifacts.formats.torch_tensors import Tensors, View
from reprokit.artifacts.parts import Limits, Noise, Part, Source, Within
from reprokit.artifacts.sources import exactly, piece
from reprokit.errors import ArtifactDamaged

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
MEMBERS = {"storages", "tensors", "pickle"}
MOST_DIMENSIONS = 64


def number_at(source: Source, offset: int, size: int = 8) -> int:
    """A little-endian number."""
    return int.from_bytes(exactly(source, offset, size), "little", signed=True)


class Stream:
    """Pickles and plain bytes, one behind the other."""

    def __init__(self, source: Source, limits: Limits):
        self.source, self.limits = source, limits
        self.at = 0

    def pickled(self) -> Item:
        """The object of the next pickle."""
        found = Machine(Cursor(self.source, self.at), self.limits).run()
        self.at = found.stop
        return found.root

    def number(self, size: int = 8) -> int:
        found = number_at(self.source, self.at, size)
        self.at += size
        return found

    def storage(self, element: int, what: str) -> Storage:
        """A storage behind the number of its elements."""
        count = self.number()
        if count < 0 or count * element > self.source.size - self.at:
            left = self.source.size - self.at
            raise ArtifactDamaged(f"{what} is to have {count} elements of {element} bytes, and {left} bytes are left")
        found = piece(self.source, self.at, count * element)
        self.at += count * element
        return Storage(found, what)


def streamed(source: Source, limits: Limits) -> Iterator[Part]:
    """Magic number, version, system, object, keys, then each storage behind the number of its elements."""
    stream = Stream(source, limits)
    if stream.pickled() != MAGIC or stream.pickled() != VERSION:
        raise ArtifactDamaged("it does not begin like a file of torch.save")
    system = stream.pickled()
    tensors = Tensors({}, source.size)
    found = load(source, stream.at, limits, tensors)
    stream.at = found.stop
    for key in keys_of(stream.pickled()):
        if key not in tensors.references or key in tensors.storages:
            raise ArtifactDamaged(f"no tensor speaks of its storage {key[:80]!r}, or it is there twice")
        number = len(tensors.storages)
        tensors.storages[key] = stream.storage(tensors.references[key].type.size, f"storage {number}")
    walk = walk_of(tensors, limits, source.size)
    yield from written_on(walk, system)
    yield from walk.pickle(found, source)
    yield from sources_of(walk, tensors, "")
    yield from tensors.rest(walk)
    yield protocol(walk, found, "")
    if stream.at < source.size:
        yield walk.blob("(after the end)", piece(source, stream.at, source.size - stream.at))


def written_on(walk: Walk, system: Item) -> Iterator[Part]:
    """What the file says of the machine that wrote it, which changes nothing: its numbers are little-endian always."""
    known = Mapping([("protocol_version", VERSION), ("little_endian", True)])
    if isinstance(system, Mapping) and system.items[:2] == known.items and len(system.items) == 3:
        name, sizes = system.items[2]
        if name == "type_sizes" and isinstance(sizes, Mapping) and len(sizes.items) < 10:
            texts = [f"{exact(key)}: {exact(value)}" for key, value in sizes.items]
            yield Noise(walk.named("(system)"), ", ".join(texts))
            return
    yield from walk.tree("(system)", system)


def keys_of(item: Item) -> list[str]:
    """The keys of the storages that follow."""
    if not isinstance(item, Sequence) or item.kind != "list":
        raise ArtifactDamaged("its storages have no list of keys")
    keys = [text(key) for key in item.items]
    known = [key for key in keys if key is not None]
    if len(known) < len(keys):
        raise ArtifactDamaged("the key of a storage is no text")
    return known


class NumberedTensors(Tensors):
    """Tensors and storages that a pickle refers to by number, as in the tar archives."""

    def __init__(self, storages: dict[str, Storage], size: int):
        super().__init__(storages, size)
        self.views: dict[str, View] = {}

    def storage(self, walk: Walk, path: str, item: Object) -> Seen | None:
        """A tensor or a storage, whichever has this number."""
        key = number_text(item.arguments[0])
        found = self.references.get(key)
        view = self.views.get(key)
        if view is None and found is not None:
            count = found.count if found.view is None else found.view[1]
            view = View(found, found.type, 0, (count,), (1,), f"storage, on {found.location}")
        if view is None or item.changes:
            return None
        walk.meet(item)
        return self.shown(walk, path, view), None


def number_text(item: Item) -> str:
    return str(item) if type(item) is int else text(item) or ""


def tarred(source: Source, limits: Limits) -> Iterator[Part]:
    """The tar of storages, tensors and a pickle; another tar is read as such."""
    parts = list(tar.read(source, limits))
    members = {part.name: part.source for part in parts if isinstance(part, Within)}
    if not members.keys() >= MEMBERS:
        yield from parts
        return
    yield from (part for part in parts if part.name not in MEMBERS)
    tensors = NumberedTensors({}, source.size)
    read_storages(Stream(members["storages"], limits), tensors)
    read_tensors(Stream(members["tensors"], limits), tensors)
    found = load(members["pickle"], 0, limits, tensors)
    walk = walk_of(tensors, limits, source.size)
    yield from walk.pickle(found, members["pickle"])
    yield from sources_of(walk, tensors, "")
    yield from tensors.rest(walk)
    yield protocol(walk, found, "")


def fields(item: Item, count: int, what: str) -> list[Item]:
    """The fields of a tuple of so many."""
    if not isinstance(item, Sequence) or len(item.items) != count:
        raise ArtifactDamaged(f"{what} is not described by {count} fields")
    return item.items


def counted(item: Item) -> int:
    if type(item) is not int or item < 0:
        raise ArtifactDamaged("a number of things is none")
    return item


def read_storages(stream: Stream, tensors: NumberedTensors) -> None:
    """Each storage behind its description, then the views on them."""
    for number in range(counted(stream.pickled())):
        key, location, class_ = fields(stream.pickled(), 3, f"storage {number}")
        type_ = storage_type(class_)
        if type_ is None:
            raise ArtifactDamaged(f"the type of storage {number} is not known")
        found = stream.storage(type_.size, f"storage {number}")
        name = number_text(key)
        tensors.storages[name] = found
        tensors.references[name] = Reference(type_, name, text(location) or "", found.source.size // type_.size)
    views = stream.pickled()
    if not isinstance(views, Sequence):
        raise ArtifactDamaged("the views on its storages are no list")
    for view in views.items:
        target, root, offset, count = fields(view, 4, "a view on a storage")
        base = tensors.references.get(number_text(root))
        if base is None:
            raise ArtifactDamaged("a view is on no storage")
        part = (counted(offset), counted(count))
        tensors.references[number_text(target)] = Reference(base.type, base.key, base.location, base.count, part)
    require_end(stream, "storages")


def read_tensors(stream: Stream, tensors: NumberedTensors) -> None:
    """Each tensor's sizes, strides and offset behind its description."""
    for number in range(counted(stream.pickled())):
        key, storage, _ = fields(stream.pickled(), 3, f"tensor {number}")
        found = tensors.references.get(number_text(storage))
        dimensions = stream.number(4)
        stream.number(4)
        if found is None or not 0 <= dimensions <= MOST_DIMENSIONS:
            raise ArtifactDamaged(f"tensor {number} has no storage, or {dimensions} dimensions")
        shape = tuple(stream.number() for _ in range(dimensions))
        strides = tuple(stream.number() for _ in range(dimensions))
        if any(length < 0 for length in (*shape, *strides)):
            raise ArtifactDamaged(f"tensor {number} has a negative size")
        view = View(found, found.type, stream.number(), shape, strides, f"tensor, on {found.location}")
        tensors.views[number_text(key)] = view
    require_end(stream, "tensors")


def require_end(stream: Stream, name: str) -> None:
    if stream.at < stream.source.size:
        raise ArtifactDamaged(f"there are bytes behind the end of its {name}")
