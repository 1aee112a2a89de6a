"""NumPy's .npz: a zip of arrays."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Part, Source
from reprokit.artifacts.formats import npy
from reprokit.artifacts.formats import zip as archive
from reprokit.artifacts.sources import exactly


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The arrays by their names; other members as files within."""
    found = archive.members(source, limits)
    yield from archive.noise(found)
    for member in found:
        name = member.name.removesuffix(".npy")
        if name != member.name and exactly(member.source, 0, min(6, member.source.size)) == npy.MAGIC:
            yield from npy.array(name, member.source)
        else:
            yield archive.part(member)
