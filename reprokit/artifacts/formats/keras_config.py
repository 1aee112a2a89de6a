"""The JSON that Keras writes: objects that occur twice are numbered by their addresses, which say nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reprokit.artifacts.elements import Limits, Part, Value
from reprokit.artifacts.formats import json as json_format
from reprokit.artifacts.formats import strict_json
from reprokit.errors import ArtifactDamaged

SHARED = "/shared_object_id"


def values(name: str, text: str, limits: Limits) -> Iterator[Part]:
    """The values of a text, which is one value where it is no JSON."""
    try:
        document = strict_json.loads(text.encode("utf-8", "surrogatepass"), "its JSON")
    except ArtifactDamaged:
        yield Value(name, repr(text))
        return
    yield from numbered(json_format.values(name, document, limits.nesting))


def numbered(parts: Iterator[Part]) -> Iterator[Part]:
    """The parts with the identities of shared objects replaced by their order."""
    numbers: dict[str, str] = {}
    for part in parts:
        if isinstance(part, Value) and part.name.endswith(SHARED):
            yield replace(part, text=numbers.setdefault(part.text, f"object {len(numbers)}"))
        else:
            yield part
