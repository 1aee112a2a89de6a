"""Keras' .keras: a zip of the configuration, the weights and metadata, of which the date is noise."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats import keras_config
from reprokit.artifacts.formats import zip as zip_format
from reprokit.artifacts.sources import whole

METADATA, CONFIGURATION = "metadata.json", "config.json"
DATE = "metadata.json/date_saved"


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The values of the two documents, and the other members as files within."""
    found = zip_format.members(source, limits)
    yield from zip_format.noise(found)
    for member in found:
        if member.name not in (METADATA, CONFIGURATION):
            yield zip_format.part(member)
            continue
        text = whole(member.source, limits.text, member.name).decode("utf-8", "surrogateescape")
        for part in keras_config.values(member.name, text, limits):
            yield Noise(part.name, part.text) if part.name == DATE and isinstance(part, Value) else part
