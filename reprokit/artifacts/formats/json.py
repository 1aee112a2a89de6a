"""JSON: every value by its path; numbers exactly as they are written."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reprokit import untrusted_json
from reprokit.artifacts.elements import Limits, Noise, Part, Source, TensorPart, Value
from reprokit.artifacts.sources import BytesSource, read_whole
from reprokit.errors import ArtifactDamaged

CATBOOST = "catboost_version_info"  # among the facts of a model
OF_ONE_TRAINING = ("value/model_info/model_guid", "value/model_info/train_finish_time")
# Of a notebook, by nbformat, nbclient and papermill. Cells have no names before nbformat 4.5.
OF_ONE_EXECUTION = re.compile(
    r"value/cells/\d+/(?:id|metadata/execution/(?:iopub|shell)[.\w]*)"
    r"|value/(?:cells/\d+/)?metadata/papermill/(?:start_time|end_time|duration)"
)
MANY = 256  # numbers of a list that are compared as a tensor
LARGEST = 64 << 20  # bytes of a text
MEMORY = 120 << 20  # bytes that its values may take, as estimated before they are made


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of the document; of a model of CatBoost's but its GUID and the time of training."""
    document = loads(read_whole(source, LARGEST), "it")
    info = dict(document.items).get("model_info") if isinstance(document, Pairs) else None
    is_catboost = isinstance(info, Pairs) and CATBOOST in dict(info.items)
    for part in values("value", document, limits.nesting):
        if not (is_catboost and part.name in OF_ONE_TRAINING):
            yield part


def notebook(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of a Jupyter notebook; when it was executed, and the names drawn for its cells, are noise."""
    for part in values("value", loads(read_whole(source, LARGEST), "it"), limits.nesting):
        yield Noise(part.name, part.text) if isinstance(part, Value) and OF_ONE_EXECUTION.fullmatch(part.name) else part


def values(name: str, value: Any, nesting: int) -> Iterator[Part]:
    """Yield a value and all that is in it: a path and a text each."""
    if nesting < 0:
        raise ArtifactDamaged("its values are nested too deep")
    yield Value(name, _text(value))
    path = f"{name}/" if name else ""
    if isinstance(value, Pairs):
        for key, inner in value.items:
            yield from values(f"{path}{escaped(key)}", inner, nesting - 1)
    elif isinstance(value, list) and len(value) >= MANY and all(isinstance(one, Number) for one in value):
        data = struct.pack(f"<{len(value)}d", *map(float, value))
        yield TensorPart(f"{name}/numbers", "float64", (len(value),), BytesSource(data))
        yield Value(f"{name}/as written", hashlib.sha256(",".join(value).encode()).hexdigest())
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from values(f"{path}{index}", inner, nesting - 1)


def escaped(key: str) -> str:
    """Return a key within a path, as JSON Pointer has it."""
    return key.replace("~", "~0").replace("/", "~1")


def _text(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Pairs):
        return f"object of {len(value.items)}"
    if isinstance(value, list):
        return f"list of {len(value)}"
    return json.dumps(value)


class Number(str):
    """A number as it is written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object: its keys and values in order, also those that occur twice."""

    items: list[tuple[str, Any]]


def loads(data: bytes, what: str = "its JSON") -> Any:
    """Return the value that a text stands for."""
    brackets = data.count(b"[") + data.count(b"{")
    if len(data) > LARGEST or untrusted_json.estimate(data) > MEMORY:
        raise ArtifactDamaged(f"{what} has {len(data)} bytes and {brackets} brackets, more than are read at once")
    try:
        text = data.decode("utf-8")
        return json.loads(
            text, object_pairs_hook=Pairs, parse_float=Number, parse_int=Number, parse_constant=_refuse
        )  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise ArtifactDamaged(f"{what} is damaged ({str(error)[:120]})") from None


def _refuse(name: str) -> Number:
    if name in ("NaN", "Infinity", "-Infinity"):
        return Number(name)  # what Python and NumPy write
    raise ValueError(f"{name[:20]} is no value")
