"""Reads the pickles of PyTorch, and shows their objects and the tensors in them."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Part, Source
from reprokit.artifacts.formats.pickle_nodes import GlobalName, Item
from reprokit.artifacts.formats.pickle_numpy import recognize_numpy
from reprokit.artifacts.formats.pickle_unpickler import InertUnpickler
from reprokit.artifacts.formats.pickle_walk import PickleWalk, under
from reprokit.artifacts.formats.torch_storages import Storage, reference, text
from reprokit.artifacts.formats.torch_tensors import TorchTensors
from reprokit.artifacts.formats.zip import ZipMember
from reprokit.artifacts.sources import piece
from reprokit.errors import ArtifactDamaged

MODULE_FIELDS = 4
SHORT = 100


def unpickled(
    member: ZipMember, storages: dict[str, Storage], limits: Limits, big_endian: bool, prefix: str
) -> Iterator[Part]:
    """The objects of one pickle of an archive, then the rest of its storages."""
    size = sum(storage.source.size for storage in storages.values())
    tensors = TorchTensors(storages, member.source.size + size, big_endian=big_endian)
    try:
        loaded = unpickler_of(member.source, 0, limits, tensors)
        root = loaded.load()
        walk = walk_of(tensors, limits, member.source.size + size)
        yield from walk.pickle(loaded, root, prefix)
        yield from sources_of(walk, tensors, prefix)
        yield from tensors.rest(walk)
        if loaded.stop < member.source.size:
            rest = piece(member.source, loaded.stop, member.source.size - loaded.stop)
            yield walk.blob(under(prefix, "(after the end)"), rest)
    except ArtifactDamaged as error:
        raise ArtifactDamaged(f"{member.name[:80]}: {error}") from None


def walk_of(tensors: TorchTensors, limits: Limits, size: int) -> PickleWalk:
    """A walk that knows tensors and arrays."""
    return PickleWalk(limits, size, (tensors.recognize, recognize_numpy))


def unpickler_of(source: Source, at: int, limits: Limits, tensors: TorchTensors) -> InertUnpickler:
    """Reads PyTorch's pickles; the classes of modules, which stand there with their source code, become names."""
    unpickler = InertUnpickler(source, at, limits)

    def persistent_load(identity: Item) -> Item:
        found = reference(identity)
        if found is not None:
            tensors.references.setdefault(found.key, found)
        if isinstance(identity, tuple) and len(identity) == MODULE_FIELDS and text(identity[0]) == "module":
            _, class_, file, code = identity
            if isinstance(class_, GlobalName):
                tensors.classes.append((class_, (file, code)))
                return class_
        return None

    unpickler.resolve = persistent_load
    return unpickler


def sources_of(walk: PickleWalk, tensors: TorchTensors, prefix: str) -> Iterator[Part]:
    """The source code of classes, which old files carry along."""
    for class_, pair in tensors.classes:
        path = under(prefix, f"(source of {str(class_)[:SHORT]})")
        yield from walk.tree(path, pair)
