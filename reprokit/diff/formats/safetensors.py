"""Reads safetensors: a JSON header, then the contiguous bytes of the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from reprokit.core import dtypes
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Part, Source, TensorPart, Value
from reprokit.diff.formats import json as json_format
from reprokit.diff.formats.json import JsonObject, NumberText
from reprokit.diff.sources import read_exactly

LONGEST_HEADER = 100_000_000  # bytes, by the format


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the metadata, then the tensors in the order of their bytes."""
    header, start = _header(source, limits)
    tensors = []
    seen = set()
    for name, facts in header.items:
        if name in seen:
            raise ArtifactDamaged(f"its header has {name[:80]!r} twice")
        seen.add(name)
        if name == "__metadata__":
            yield from _metadata(facts)
        else:
            tensors.append((*_tensor(name, facts, source, start), name))
    end = start
    for begin, stop, tensor, name in sorted(tensors, key=lambda entry: entry[:2]):
        if begin != end:
            raise ArtifactDamaged(f"the bytes of {name[:80]!r} {'overlap others' if begin < end else 'follow a hole'}")
        end = stop
        yield tensor
    if end != source.size:
        raise ArtifactDamaged(f"its tensors end at byte {end}, the file at {source.size}")


def _header(source: Source, limits: Limits) -> tuple[JsonObject, int]:
    length = int.from_bytes(read_exactly(source, 0, 8), "little")
    if length > min(LONGEST_HEADER, limits.header, source.size - 8):
        raise ArtifactDamaged(f"its header is said to have {length} bytes, the file has {source.size}")
    data = read_exactly(source, 8, length)
    header = json_format.loads(data, "its header") if data.startswith(b"{") else None
    if not isinstance(header, JsonObject):
        raise ArtifactDamaged("its header is no JSON object")
    return header, 8 + length


def _metadata(facts: Any) -> Iterator[Value]:
    pairs: list[tuple[str, Any]] = facts.items if isinstance(facts, JsonObject) else [("", None)]
    if not all(type(text) is str for _, text in pairs) or len({key for key, _ in pairs}) != len(pairs):
        raise ArtifactDamaged("its __metadata__ is no object of texts")
    yield from (Value(f"__metadata__/{key}", text) for key, text in pairs)


def _tensor(name: str, facts: Any, source: Source, start: int) -> tuple[int, int, TensorPart]:
    """Return the offsets of begin and end of a tensor, and the tensor."""
    entries = dict(facts.items) if isinstance(facts, JsonObject) else {}
    if entries.keys() != {"dtype", "shape", "data_offsets"} or len(entries) != len(facts.items):
        raise ArtifactDamaged(f"its header does not say what {name[:80]!r} is")
    shape, offsets = _numbers(name, entries["shape"]), _numbers(name, entries["data_offsets"])
    kind = dtypes.SAFETENSORS.get(entries["dtype"]) if type(entries["dtype"]) is str else None
    if kind is None or len(shape) > 64:
        raise ArtifactDamaged(f"{name[:80]!r} is of a type that is not known: {str(entries['dtype'])[:40]!r}")
    count = math.prod(shape)
    size = dtypes.named(kind).file_size(count)
    if len(offsets) != 2 or offsets[1] - offsets[0] != size or count * dtypes.named(kind).bits % 8:
        raise ArtifactDamaged(f"{name[:80]!r} has another size than its type and shape need")
    begin, end = start + offsets[0], start + offsets[1]
    if end > source.size:
        raise ArtifactDamaged(f"{name[:80]!r} ends at byte {end}, the file at {source.size}")
    return begin, end, TensorPart(name, kind, shape, source, begin)


def _numbers(name: str, items: Any) -> tuple[int, ...]:
    texts = [str(item) if isinstance(item, NumberText) else "" for item in items] if isinstance(items, list) else [""]
    if not all(text.isdecimal() and text.isascii() and len(text) <= 19 for text in texts):
        raise ArtifactDamaged(f"the header has no sizes for {name[:80]!r}")
    return tuple(map(int, texts))
