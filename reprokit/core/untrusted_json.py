"""Reads JSON that somebody else may have written: every value has one meaning, and memory is bounded.

Of two equal keys other readers take the first or the last, so that what one checks another does not see.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

SHORT = 4096  # bytes of a text for which a quicker reader is tried first
SMALL = 1 << 20  # bytes of a text that fits in memory whatever its values are
MEMORY = 1 << 30  # bytes that the values may take, as estimated before they are made


def loads(data: bytes) -> Any:
    """Return the value; raises ValueError for everything that is not strict JSON in UTF-8.

    The standard library's reader keeps file names that are not UTF-8, as escaped surrogates.
    """
    if len(data) > SMALL and estimate(data) > MEMORY:
        raise ValueError(f"{len(data)} bytes of JSON hold more values than are read at once")
    try:
        content = msgspec.json.decode(data) if len(data) <= SHORT else None
        if type(content) is dict and data.count(b":") == _keys(content):
            return content  # with as many keys as colons: none took the place of another
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_in(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key; an empty one where there is none."""
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _keys(content: dict[str, Any]) -> int:
    """Count the keys of an object and of those in it."""
    count = len(content)
    for value in content.values():
        if type(value) is dict:
            count += _keys(value)
    return count  # fewer than there are where lists hold objects: then the other reader decides


def estimate(data: bytes) -> int:
    """Return the bytes that the values of a text may take in memory."""
    brackets = data.count(b"[") + data.count(b"{")
    return 2 * len(data) + 120 * brackets + 90 * data.count(b",") + 130 * data.count(b":")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:80]!r} occurs twice in an object")
    return content


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name[:20]} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite)
