"""Runs the pickles of PyTorch, and shows their objects and the tensors in them."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.formats.pickle import protocol
from reprokit.artifacts.formats.pickle_machine import Cursor, Machine, Pickle
from reprokit.artifacts.formats.pickle_nodes import Global, Item, Sequence
from reprokit.artifacts.formats.pickle_numpy import recognise
from reprokit.artifacts.formats.pickle_others import recognise_others
from reprokit.artifacts.formats.pickle_walk import Walk, under
from reprokit.artifacts.formats.torch_storages import Storage, reference, text
from reprokit.artifacts.formats.torch_tensors import Tensors
from reprokit.artifacts.formats.zip import Member
from reprokit.artifacts.parts import Limits, Part, Source
from reprokit.artifacts.sources import piece
from reprokit.errors import ArtifactDamaged

MODULE_FIELDS = 4
SHORT = 100


def unpickled(
    member: Member, storages: dict[str, Storage], limits: Limits, big_endian: bool, prefix: str
) -> Iterator[Part]:
    """The objects of one pickle of an archive, then the rest of its storages."""
    size = sum(storage.source.size for storage in storages.values())
    tensors = Tensors(storages, member.source.size + size, big_endian=big_endian)
    try:
        found = load(member.source, 0, limits, tensors)
        walk = walk_of(tensors, limits, member.source.size + size)
        yield from walk.pickle(found, member.source, prefix)
        yield from sources_of(walk, tensors, prefix)
        yield from tensors.rest(walk)
        yield protocol(walk, found, prefix)
        if found.stop < member.source.size:
            yield walk.blob(
                under(prefix, "(after the end)"),
                piece(member.source, found.stop, member.source.size - found.stop),
            )
    except ArtifactDamaged as error:
        raise ArtifactDamaged(f"{member.name[:80]}: {error}") from None


def walk_of(tensors: Tensors, limits: Limits, size: int) -> Walk:
    """A walk that knows tensors and arrays."""
    return Walk(limits, size, (tensors.recognise, recognise, recognise_others))


def load(source: Source, at: int, limits: Limits, tensors: Tensors) -> Pickle:
    """Run a pickle of PyTorch; the classes of modules, which stand there with their source code, become names."""
    machine = Machine(Cursor(source, at), limits)

    def persistent_load(identity: Item) -> Item:
        found = reference(identity)
        if found is not None:
            tensors.references.setdefault(found.key, found)
        if (
            isinstance(identity, Sequence)
            and len(identity.items) == MODULE_FIELDS
            and text(identity.items[0]) == "module"
        ):
            _, class_, file, code = identity.items
            if isinstance(class_, Global):
                tensors.classes.append((class_, Sequence("tuple", [file, code])))
                return class_
        return None

    machine.persistent_load = persistent_load
    return machine.run()


def sources_of(walk: Walk, tensors: Tensors, prefix: str) -> Iterator[Part]:
    """The source code of classes, which old files carry along."""
    for class_, pair in tensors.classes:
        path = under(prefix, f"(source of {str(class_)[:SHORT]})")
        yield from walk.tree(path, pair)
