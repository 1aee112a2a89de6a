"""Reads checkpoints of Orbax: their metadata without times and paths, and the arrays in their OCDBT store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reprokit.diff.elements import Limits, Noise, Part, Source, Value
from reprokit.diff.formats import json
from reprokit.diff.formats.library_process import ParsingLibrary
from reprokit.diff.sources import open_file

MANIFEST = "manifest.ocdbt"
PARTS = ("d/", "ocdbt.process_")  # files and directories of the store besides the manifest
_LIBRARY = ParsingLibrary("OCDBT", "tensorstore", "reprokit.diff.ocdbt_process")


def metadata(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of _CHECKPOINT_METADATA; times are noise."""
    for part in json.read(source, limits):
        is_time = isinstance(part, Value) and part.name.endswith("_timestamp_nsecs")
        yield Noise(part.name, part.text) if is_time and isinstance(part, Value) else part


def commit(_source: Source, _limits: Limits) -> Iterator[Part]:
    """Yield that the checkpoint is complete; the path in the file is ignored."""
    yield Value("commit", "successful")


def arrays(directory: Path, limits: Limits) -> Iterator[Part]:
    """Yield the arrays of an OCDBT store."""
    manifest = open_file(directory / MANIFEST)
    try:
        yield from _LIBRARY.read(manifest, limits, str(directory))
    finally:
        manifest.close()
