"""Reads the files of torch.save and torch.jit.save: zip archives, and the older stream of pickles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Noise, Part, Source
from reprokit.diff.formats import zip as zip_format
from reprokit.diff.formats.pickle_nodes import Item, PickledDict, exact
from reprokit.diff.formats.pickle_numpy import recognize_numpy
from reprokit.diff.formats.pickle_unpickler import InertUnpickler
from reprokit.diff.formats.pickle_walk import PickleWalk, under
from reprokit.diff.formats.torch_tensors import Storage, TorchTensors, text
from reprokit.diff.formats.zip import ZipMember
from reprokit.diff.sources import ForwardReader, piece, read_whole

PICKLES = ("data", "constants")  # each with a directory of storages of the same name
MAIN = ("data.pkl", "archive_format")  # the members that name the directory: the pickle, and that of a .pt2
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001  # of the stream
SHORT = 100


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
    yield from walk.pickle(loaded, root, prefix)
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
