"""XGBoost's models, JSON and UBJSON: trees are in lists of numbers, each of which is a tensor.

XGBoost writes numbers of single precision with at most nine digits. Lists of numbers with at most 15 digits become
doubles, which then differ whenever the numbers do; all other numbers are compared as they are written.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Part, Source, TensorPart, Value
from reprokit.artifacts.formats import json as json_format
from reprokit.artifacts.formats import strict_json, xgboost_ubjson
from reprokit.artifacts.sources import Memory, whole
from reprokit.errors import ArtifactDamaged

FEW = 8  # shorter lists of numbers are shown number by number
TEXT_OR_LIST = re.compile(r'"(?:[^"\\]|\\.)*"|\[([-+0-9.eE, \t\r\n]+)\]', re.DOTALL)
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
DIGITS = 15  # that a double tells apart
SMALLEST = 1e-290  # of normal doubles, with room


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Every value by its path."""
    head = source.read(0, 64).lstrip()
    return (xgboost_ubjson.read if head[1:2] in xgboost_ubjson.FIRST_IN_OBJECT else _read_json)(source, limits)


def _read_json(source: Source, limits: Limits) -> Iterator[Part]:
    """Lists of numbers are taken out of the text before it is read: as values they would take too much memory."""
    try:
        text = whole(source, limits.header).decode("utf-8")
    except UnicodeError:
        raise ArtifactDamaged("it is not in UTF-8") from None
    tensors: dict[str, TensorPart] = {}
    mark = secrets.token_hex(16)  # which no file can have in it on purpose

    def taken(found: re.Match[str]) -> str:
        tensor = numbers_of(found[1]) if found[1] else None
        if tensor is None:
            return found[0]
        name = f'"{mark}{len(tensors)}"'
        tensors[name] = tensor
        return name

    document = strict_json.loads(TEXT_OR_LIST.sub(taken, text).encode())
    for part in json_format.values("", document, limits.nesting):
        tensor = tensors.get(part.text) if isinstance(part, Value) else None
        yield part if tensor is None else TensorPart(part.name, tensor.dtype, tensor.shape, tensor.source)


def numbers_of(text: str) -> TensorPart | None:
    """A list of numbers as a tensor; None where they are few, or doubles would not tell them apart."""
    items = [item.strip() for item in text.split(",")]
    if len(items) < FEW or not all(map(NUMBER.fullmatch, items)):
        return None
    if any(sign in text for sign in ".eE"):
        numbers = [float(item) for item in items]
        return _tensor("float64", "d", numbers) if all(map(told_apart, items, numbers)) else None
    if any(item == "-0" or len(item) >= 20 for item in items):
        return None
    try:
        return _tensor("int64", "q", [int(item) for item in items])
    except struct.error:
        return None


def _tensor(dtype: str, letter: str, numbers: list[int] | list[float]) -> TensorPart:
    return TensorPart("", dtype, (len(numbers),), Memory(struct.pack(f"<{len(numbers)}{letter}", *numbers)))


def told_apart(item: str, number: float) -> bool:
    """Whether no other number of as few digits is the same double."""
    digits = item.lstrip("-").upper().partition("E")[0].replace(".", "")
    if len(digits) > DIGITS:
        return False
    return SMALLEST < abs(number) < 1e300 if digits.strip("0") else number == 0
