"""Reads JSON: every value by its path, numbers as written."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reprokit.core import untrusted_json
from reprokit.core.difference import BookkeepingKind
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, NestedFile, Noise, Part, Source, TensorPart, Value
from reprokit.diff.formats import PICKLE
from reprokit.diff.sources import BytesSource, read_whole

CATBOOST = "catboost_version_info"  # a key in the info of a model
RUN_SPECIFIC = ("value/model_info/model_guid", "value/model_info/train_finish_time")
# Values in notebooks that nbformat, nbclient and papermill write at each execution. Cells have ids since nbformat 4.5.
VOLATILE = re.compile(
    r"value/cells/\d+/(?:id|metadata/execution/(?:iopub|shell)[.\w]*)"
    r"|value/(?:cells/\d+/)?metadata/papermill/(?:start_time|end_time|duration)"
)
MANY = 256  # length from which a list of numbers is compared as a tensor
LARGEST = 64 << 20  # bytes of a document
MEMORY = 120 << 20  # bytes that the parsed values may take, estimated in advance


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of a document; for a CatBoost model without its GUID and training time."""
    document = loads(read_whole(source, LARGEST), "it")
    info = dict(document.items).get("model_info") if isinstance(document, JsonObject) else None
    is_catboost = isinstance(info, JsonObject) and CATBOOST in dict(info.items)
    for part in values("value", document, limits.nesting):
        if not (is_catboost and part.name in RUN_SPECIFIC):
            yield part


def notebook(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of a Jupyter notebook; times of execution and random cell ids are noise."""
    for part in values("value", loads(read_whole(source, LARGEST), "it"), limits.nesting):
        is_volatile = isinstance(part, Value) and VOLATILE.fullmatch(part.name) is not None
        yield _of_execution(part) if is_volatile else part


def _of_execution(part: Part) -> Noise:
    """Return a value that a notebook gets at each execution."""
    assert isinstance(part, Value)
    key = part.name.rpartition("/")[2]
    kinds = {"id": BookkeepingKind.ID, "duration": BookkeepingKind.DURATION}
    return Noise(part.name, part.text, kinds.get(key, BookkeepingKind.DATE))


def values(name: str, value: Any, nesting: int) -> Iterator[Part]:
    """Yield a value and all nested values by path."""
    if nesting < 0:
        raise ArtifactDamaged("its values are nested too deep")
    yield Value(name, _text(value))
    path = f"{name}/" if name else ""
    if isinstance(value, JsonObject):
        for key, inner in value.items:
            yield from values(f"{path}{escaped(key)}", inner, nesting - 1)
    elif isinstance(value, list) and len(value) >= MANY and all(isinstance(item, NumberText) for item in value):
        data = struct.pack(f"<{len(value)}d", *map(float, value))
        yield TensorPart(f"{name}/numbers", "float64", (len(value),), BytesSource(data))
        yield Value(f"{name}/as written", hashlib.sha256(",".join(value).encode()).hexdigest())
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from values(f"{path}{index}", inner, nesting - 1)


def read_text(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of a text that looks like JSON; a pickle in base64, as Stable-Baselines3 has them, as a file."""
    for part in read(source, limits):
        pickle = _pickle(part.text) if isinstance(part, Value) else None
        yield part if pickle is None else NestedFile(f"{part.name}/pickle", BytesSource(pickle))


def _pickle(text: str) -> bytes | None:
    """Return the bytes of a pickle in base64; None for other values."""
    if not text.startswith('"gA'):  # protocol 2 or later
        return None
    try:
        data = base64.b64decode(text[1:-1], validate=True)
    except ValueError:
        return None
    return data if re.match(PICKLE, data, re.DOTALL) and data.endswith(b".") else None


def escaped(key: str) -> str:
    """Escape a key for a path, as in JSON Pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _text(value: Any) -> str:
    if isinstance(value, NumberText):
        return str(value)
    if isinstance(value, JsonObject):
        return f"object of {len(value.items)}"
    if isinstance(value, list):
        return f"list of {len(value)}"
    return json.dumps(value)


class NumberText(str):
    """The text of a number, as written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object: its keys and values in order, duplicates included."""

    items: list[tuple[str, Any]]


def loads(data: bytes, what: str = "its JSON") -> Any:
    """Parse a JSON document; raises ArtifactDamaged if it is malformed or too large."""
    brackets = data.count(b"[") + data.count(b"{")
    if len(data) > LARGEST or untrusted_json.estimate(data) > MEMORY:
        raise ArtifactDamaged(f"{what} has {len(data)} bytes and {brackets} brackets, more than are read at once")
    try:
        text = data.decode("utf-8")
        return json.loads(
            text, object_pairs_hook=JsonObject, parse_float=NumberText, parse_int=NumberText, parse_constant=_refuse
        )  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise ArtifactDamaged(f"{what} is damaged ({str(error)[:120]})") from None


def _refuse(name: str) -> NumberText:
    if name in ("NaN", "Infinity", "-Infinity"):
        return NumberText(name)  # not in the standard, but written by Python and NumPy
    raise ValueError(f"{name[:20]} is no value")
