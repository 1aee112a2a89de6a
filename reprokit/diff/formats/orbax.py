"""Reads the metadata of Orbax' checkpoints, without times and paths; their arrays are in a store (diff.stores)."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.diff.elements import Limits, Noise, Part, Source, Value
from reprokit.diff.formats import json


def metadata(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of _CHECKPOINT_METADATA; times are noise."""
    for part in json.read(source, limits):
        is_time = isinstance(part, Value) and part.name.endswith("_timestamp_nsecs")
        yield Noise(part.name, part.text) if is_time and isinstance(part, Value) else part


def commit(_source: Source, _limits: Limits) -> Iterator[Part]:
    """Yield that the checkpoint is complete; the path in the file is ignored."""
    yield Value("commit", "successful")
