"""TensorFlow's graphs: of a SavedModel, beside a checkpoint of TensorFlow 1, and SavedModel's fingerprint."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats import tensorflow_messages

# The first is a sum over saved_model.pb, whose maps are written in any order; what is in it is compared there.
NOISE = ("saved_model_checksum", "uuid")


def saved_model(source: Source, limits: Limits) -> Iterator[Part]:
    """Every value by its path, nodes by their names; the variables are a checkpoint beside it."""
    yield from tensorflow_messages.walker(source, limits).message("", "SavedModel")


def meta_graph(source: Source, limits: Limits) -> Iterator[Part]:
    """The same of NAME.meta."""
    yield from tensorflow_messages.walker(source, limits).message("", "MetaGraphDef")


def fingerprint(source: Source, limits: Limits) -> Iterator[Part]:
    """Each field: sums of the parts of a SavedModel, a random identity, and the sum of how the file was written."""
    for part in tensorflow_messages.walker(source, limits).message("", "FingerprintDef"):
        yield Noise(part.name, part.text) if isinstance(part, Value) and part.name in NOISE else part
