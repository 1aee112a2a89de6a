"""JSON as it is written: numbers keep their texts, objects their double keys; memory and nesting are bounded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from reprokit.errors import ArtifactDamaged

LARGEST = 64 << 20  # bytes of a text
MEMORY = 120 << 20  # bytes that its values may take, as estimated before they are made


class Number(str):
    """A number as it is written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object: its keys and values in order, also those that occur twice."""

    items: list[tuple[str, Any]]


def loads(data: bytes, what: str = "its JSON") -> Any:
    """The value that a text stands for."""
    brackets = data.count(b"[") + data.count(b"{")
    estimate = 2 * len(data) + 120 * brackets + 90 * data.count(b",") + 130 * data.count(b":")
    if len(data) > LARGEST or estimate > MEMORY:
        raise ArtifactDamaged(f"{what} has {len(data)} bytes and {brackets} brackets, more than are read at once")
    try:
        text = data.decode("utf-8")
        return json.loads(
            text, object_pairs_hook=Pairs, parse_float=Number, parse_int=Number, parse_constant=_refuse
        )  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise ArtifactDamaged(f"{what} is damaged ({str(error)[:120]})") from None


def _refuse(name: str) -> Any:
    if name in ("NaN", "Infinity", "-Infinity"):
        return Number(name)  # what Python and NumPy write
    return _refused(name)


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name[:20]} is no value")
