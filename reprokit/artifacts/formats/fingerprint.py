"""SavedModel's fingerprint.pb: sums of its parts, a random identity, and the sum of how the file was written."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.formats import tensorflow_messages
from reprokit.artifacts.parts import Limits, Noise, Part, Source, Value

# The first is a sum over saved_model.pb, whose maps are written in any order; what is in it is compared there.
NOISE = ("saved_model_checksum", "uuid")


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Each field."""
    for part in tensorflow_messages.walker(source, limits).message("", "FingerprintDef"):
        yield Noise(part.name, part.text) if isinstance(part, Value) and part.name in NOISE else part
