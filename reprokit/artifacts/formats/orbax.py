"""Checkpoints of Orbax: their metadata without times and places, and the arrays that their directory of OCDBT holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reprokit.artifacts.elements import Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats import json
from reprokit.artifacts.formats.library_process import ParsingLibrary
from reprokit.artifacts.sources import open_file

MANIFEST = "manifest.ocdbt"
PARTS = ("d/", "ocdbt.process_")  # what beside the manifest is a part of the same store
_LIBRARY = ParsingLibrary("OCDBT", "tensorstore", "reprokit.artifacts.ocdbt_process")


def metadata(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield what _CHECKPOINT_METADATA says, times as noise."""
    for part in json.read(source, limits):
        is_time = isinstance(part, Value) and part.name.endswith("_timestamp_nsecs")
        yield Noise(part.name, part.text) if is_time and isinstance(part, Value) else part


def commit(_source: Source, _limits: Limits) -> Iterator[Part]:
    """Yield that the checkpoint is whole; where it was written is no part of it."""
    yield Value("commit", "successful")


def arrays(directory: Path, limits: Limits) -> Iterator[Part]:
    """Yield the arrays of a directory of OCDBT."""
    manifest = open_file(directory / MANIFEST)
    try:
        yield from _LIBRARY.read(manifest, limits, str(directory))
    finally:
        manifest.close()
