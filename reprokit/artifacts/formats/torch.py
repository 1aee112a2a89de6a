"""Reads what torch.save and torch.jit.save write: zip archives, and the older stream of pickles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reprokit.artifacts.elements import Limits, Noise, Part, Source
from reprokit.artifacts.formats import torch_stream
from reprokit.artifacts.formats import zip as zip_format
from reprokit.artifacts.formats.torch_objects import SHORT, unpickled
from reprokit.artifacts.formats.torch_storages import Storage
from reprokit.artifacts.formats.zip import ZipMember
from reprokit.artifacts.sources import whole
from reprokit.errors import ArtifactDamaged

PICKLES = ("data", "constants")  # each with a directory of storages of the same name


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Reads whichever of the two formats it is."""
    read_format = zipped if source.read(0, 2) == b"PK" else torch_stream.streamed
    return read_format(source, limits)


def zipped(source: Source, limits: Limits) -> Iterator[Part]:
    """An archive of one pickle or two, their storages, and for TorchScript the code."""
    found = zip_format.members(source, limits)
    top = next((m.name.removesuffix("data.pkl") for m in found if is_main(m.name)), None)
    if top is None or any(not member.name.startswith(top) for member in found):
        yield from zip_format.read(source, limits)
        return
    members = {member.name.removeprefix(top): member for member in found}
    if len(members) < len(found):
        raise ArtifactDamaged("two of its members have the same name")
    yield Noise("(name of the archive)", top)
    yield from zip_format.noise([replace(member, name=name) for name, member in members.items()])
    big = order_of(members) == "big"
    taken = {"byteorder", ".data/serialization_id", ".storage_alignment"}
    for name in PICKLES:
        if f"{name}.pkl" in members:
            storages = storages_of(name, members)
            taken |= {f"{name}.pkl", *(storage.name for storage in storages.values())}
            prefix = "" if name == "data" else f"({name})"
            yield from unpickled(members[f"{name}.pkl"], storages, limits, big, prefix)
    for name, member in members.items():
        if name in taken:
            continue
        if name in ("version", ".format_version"):
            yield Noise(f"({name})", whole(member.source, SHORT, name).decode("latin-1").strip())
        else:
            yield zip_format.part(replace(member, name=name))
    for name in sorted(taken & members.keys()):
        if name.startswith(".") or name == "byteorder":
            yield Noise(f"({name})", whole(members[name].source, 4096, name).decode("latin-1"))


def is_main(name: str) -> bool:
    """Whether this is the pickle of an archive: data.pkl in its one directory."""
    return name == "data.pkl" or (name.endswith("/data.pkl") and name.count("/") == 1)


def order_of(members: dict[str, ZipMember]) -> str:
    if "byteorder" not in members:
        return "little"
    order = whole(members["byteorder"].source, SHORT, "byteorder").decode("latin-1").strip()
    if order not in ("little", "big"):
        raise ArtifactDamaged(f"byteorder is {order[:40]!r}")
    return order


def storages_of(name: str, members: dict[str, ZipMember]) -> dict[str, Storage]:
    """The storages of a pickle, by key."""
    start = f"{name}/"
    return {
        key.removeprefix(start): Storage(member.source, key)
        for key, member in members.items()
        if key.startswith(start) and not member.is_directory
    }
