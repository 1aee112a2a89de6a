"""Reads what torch.save wrote before 1.6: a stream of pickles, then the storages one behind the other."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Noise, Part, Source
from reprokit.artifacts.formats.pickle_nodes import Item, PickledDict, exact
from reprokit.artifacts.formats.pickle_unpickler import InertUnpickler
from reprokit.artifacts.formats.pickle_walk import PickleWalk
from reprokit.artifacts.formats.torch_objects import sources_of, unpickler_of, walk_of
from reprokit.artifacts.formats.torch_storages import Storage, text
from reprokit.artifacts.formats.torch_tensors import TorchTensors
from reprokit.artifacts.sources import exactly, piece
from reprokit.errors import ArtifactDamaged

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001


class TorchStream:
    """Pickles and plain bytes, one behind the other."""

    def __init__(self, source: Source, limits: Limits):
        self.source, self.limits = source, limits
        self.at = 0

    def pickled(self) -> Item:
        """The object of the next pickle."""
        loaded = InertUnpickler(self.source, self.at, self.limits)
        root = loaded.load()
        self.at = loaded.stop
        return root

    def number(self) -> int:
        found = exactly(self.source, self.at, 8)
        self.at += 8
        return int.from_bytes(found, "little", signed=True)

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
    stream = TorchStream(source, limits)
    if stream.pickled() != MAGIC or stream.pickled() != VERSION:
        raise ArtifactDamaged("it does not begin like a file of torch.save")
    system = stream.pickled()
    tensors = TorchTensors({}, source.size)
    loaded = unpickler_of(source, stream.at, limits, tensors)
    root = loaded.load()
    stream.at = loaded.stop
    for key in keys_of(stream.pickled()):
        if key not in tensors.references or key in tensors.storages:
            raise ArtifactDamaged(f"no tensor speaks of its storage {key[:80]!r}, or it is there twice")
        number = len(tensors.storages)
        tensors.storages[key] = stream.storage(tensors.references[key].type.size, f"storage {number}")
    walk = walk_of(tensors, limits, source.size)
    yield from written_on(walk, system)
    yield from walk.pickle(loaded, root)
    yield from sources_of(walk, tensors, "")
    yield from tensors.rest(walk)
    if stream.at < source.size:
        yield walk.blob("(after the end)", piece(source, stream.at, source.size - stream.at))


def written_on(walk: PickleWalk, system: Item) -> Iterator[Part]:
    """What the file says of the machine that wrote it, which changes nothing: its numbers are little-endian always."""
    known = [("protocol_version", VERSION), ("little_endian", True)]
    if isinstance(system, PickledDict) and system.items[:2] == known and len(system.items) == 3:
        name, sizes = system.items[2]
        if name == "type_sizes" and isinstance(sizes, PickledDict) and len(sizes.items) < 10:
            texts = [f"{exact(key)}: {exact(value)}" for key, value in sizes.items]
            yield Noise(walk.named("(system)"), ", ".join(texts))
            return
    yield from walk.tree("(system)", system)


def keys_of(item: Item) -> list[str]:
    """The keys of the storages that follow."""
    if not isinstance(item, list):
        raise ArtifactDamaged("its storages have no list of keys")
    keys = [text(key) for key in item]
    known = [key for key in keys if key is not None]
    if len(known) < len(keys):
        raise ArtifactDamaged("the key of a storage is no text")
    return known
