"""SavedModel's graphs, signatures and objects; the variables are a checkpoint beside it."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.formats import tensorflow_messages
from reprokit.artifacts.parts import Limits, Part, Source


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Every value by its path: nodes by their names."""
    yield from tensorflow_messages.walker(source, limits).message("", "SavedModel")
