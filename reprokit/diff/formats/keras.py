"""Reads Keras' .keras: a zip archive of configuration, weights and metadata; the date is noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reprokit.core.difference import BookkeepingKind
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Noise, Part, Source, Value
from reprokit.diff.formats import json as json_format
from reprokit.diff.formats import zip as zip_format
from reprokit.diff.sources import read_whole

METADATA, CONFIGURATION = "metadata.json", "config.json"
DATE = "metadata.json/date_saved"
SHARED = "/shared_object_id"


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of the two JSON documents, and the other members as nested files."""
    archive = zip_format.open_archive(source, limits)
    yield from archive.around()
    for member in archive.members:
        if member.name not in (METADATA, CONFIGURATION):
            yield zip_format.part(member)
            continue
        text = read_whole(member.source, limits.text, member.name).decode("utf-8", "surrogateescape")
        for part in values(member.name, text, limits):
            is_date = part.name == DATE and isinstance(part, Value)
            yield Noise(part.name, part.text, BookkeepingKind.DATE) if is_date else part  # type: ignore[union-attr]


def values(name: str, text: str, limits: Limits) -> Iterator[Part]:
    """Yield the values of a JSON document of Keras; a text that is no JSON is a single value."""
    try:
        document = json_format.loads(text.encode("utf-8", "surrogatepass"), "its JSON")
    except ArtifactDamaged:
        yield Value(name, repr(text))
        return
    yield from numbered(json_format.values(name, document, limits.nesting))


def numbered(parts: Iterator[Part]) -> Iterator[Part]:
    """Replace the ids of shared objects, which are addresses, by numbers in order of occurrence."""
    numbers: dict[str, str] = {}
    for part in parts:
        if isinstance(part, Value) and part.name.endswith(SHARED):
            yield replace(part, text=numbers.setdefault(part.text, f"object {len(numbers)}"))
        else:
            yield part
