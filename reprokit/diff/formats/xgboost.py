"""XGBoost's models, JSON and UBJSON: trees are in lists of numbers, each of which is a tensor.

XGBoost writes numbers of single precision with at most nine digits. Lists of numbers with at most 15 digits become
doubles, which then differ whenever the numbers do; all other numbers are compared as they are written.
"""

from __future__ import annotations

import re
import secrets
import struct
from collections.abc import Iterator

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Part, Source, TensorPart, Value
from reprokit.diff.formats import json as json_format
from reprokit.diff.formats.json import escaped
from reprokit.diff.formats.pickle_nodes import exact_float
from reprokit.diff.formats.pickle_walk import unused
from reprokit.diff.sources import BytesSource, ForwardReader, piece, read_whole

FEW = 8  # shorter lists of numbers are compared number by number
TEXT_OR_LIST = re.compile(r'"(?:[^"\\]|\\.)*"|\[([-+0-9.eE, \t\r\n]+)\]', re.DOTALL)
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
DIGITS = 15  # decimal digits that a double represents uniquely
SMALLEST = 1e-290  # safely above the smallest normal double
BINARY = {
    b"i": ("int8", ">b"), b"U": ("uint8", ">B"), b"I": ("int16", ">h"), b"l": ("int32", ">i"), b"L": ("int64", ">q"),
    b"d": ("float32", ">f"), b"D": ("float64", ">d"),
}  # fmt: skip
LENGTHS = (b"i", b"U", b"I", b"l", b"L")
CONSTANTS = {b"Z": "null", b"T": "true", b"F": "false"}
FIRST_IN_OBJECT = (*LENGTHS, b"$", b"#")  # bytes that may follow {
ROOT = "(root)"


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Return the parts of a model in UBJSON or JSON: every value by its path."""
    head = source.read(0, 64).lstrip()
    return UbjsonReader(source, limits).parts() if head[1:2] in FIRST_IN_OBJECT else _read_json(source, limits)


def _read_json(source: Source, limits: Limits) -> Iterator[Part]:
    """Read JSON, with lists of numbers extracted before parsing: as parsed values they would take too much memory."""
    try:
        text = read_whole(source, limits.header).decode("utf-8")
    except UnicodeError:
        raise ArtifactDamaged("it is not in UTF-8") from None
    tensors: dict[str, TensorPart] = {}
    placeholder = secrets.token_hex(16)  # random, so that no file can contain it on purpose

    def extract(match: re.Match[str]) -> str:
        tensor = numbers_of(match[1]) if match[1] else None
        if tensor is None:
            return match[0]
        name = f'"{placeholder}{len(tensors)}"'
        tensors[name] = tensor
        return name

    document = json_format.loads(TEXT_OR_LIST.sub(extract, text).encode())
    for part in json_format.values("", document, limits.nesting):
        tensor = tensors.get(part.text) if isinstance(part, Value) else None
        yield part if tensor is None else TensorPart(part.name, tensor.dtype, tensor.shape, tensor.source)


def numbers_of(text: str) -> TensorPart | None:
    """Return a list of numbers as a tensor; None if it is short, or if doubles would lose differences."""
    items = [item.strip() for item in text.split(",")]
    if len(items) < FEW or not all(map(NUMBER.fullmatch, items)):
        return None
    if any(sign in text for sign in ".eE"):
        numbers = [float(item) for item in items]
        return _tensor("float64", "d", numbers) if all(map(is_unique, items, numbers)) else None
    if any(item == "-0" or len(item) >= 20 for item in items):
        return None
    try:
        return _tensor("int64", "q", [int(item) for item in items])
    except struct.error:
        return None


def _tensor(dtype: str, letter: str, numbers: list[int] | list[float]) -> TensorPart:
    return TensorPart("", dtype, (len(numbers),), BytesSource(struct.pack(f"<{len(numbers)}{letter}", *numbers)))


def is_unique(item: str, number: float) -> bool:
    """Return whether no other number with at most DIGITS digits has the same double."""
    digits = item.lstrip("-").upper().partition("E")[0].replace(".", "")
    if len(digits) > DIGITS:
        return False
    return SMALLEST < abs(number) < 1e300 if digits.strip("0") else number == 0


class UbjsonReader:
    """Reads UBJSON, draft 12: strongly typed arrays are tensors in place.

    The types are listed at https://ubjson.org/type-reference/; all numbers are big-endian.
    """

    def __init__(self, source: Source, limits: Limits):
        self.source, self.limits = source, limits
        self.cursor = ForwardReader(source, "the document")
        self.names: dict[str, int] = {}

    def fail(self, what: str) -> ArtifactDamaged:
        return ArtifactDamaged(f"UBJSON before byte {self.cursor.at}: {what}")

    def parts(self) -> Iterator[Part]:
        """Yield all values; raises ArtifactDamaged if bytes follow them."""
        yield from self.value("", self.marker(), 0)
        if self.cursor.at < self.source.size:
            raise self.fail("there are bytes behind its end")

    def name(self, path: str) -> str:
        return unused(self.names, path or ROOT)

    def marker(self) -> bytes:
        """Return the next type marker; no-operations are skipped."""
        marker = self.cursor.read(1)
        while marker == b"N":
            marker = self.cursor.read(1)
        return marker

    def length(self, type_: bytes) -> int:
        if type_ not in LENGTHS:
            raise self.fail(f"{type_!r} is no type of a length")
        length = int(self.number(type_))
        if length < 0:
            raise self.fail(f"a length is {length}")
        return length

    def number(self, type_: bytes) -> float | int:
        form = BINARY[type_][1]
        number: float | int = struct.unpack(form, self.cursor.read(struct.calcsize(form)))[0]
        return number

    def text(self, length: int) -> str:
        if length > self.limits.text:
            raise self.fail(f"a text has {length} bytes")
        try:
            return self.cursor.read(length).decode("utf-8")
        except UnicodeError:
            raise self.fail("a text is not in UTF-8") from None

    def value(self, path: str, type_: bytes, depth: int) -> Iterator[Part]:
        """Yield a value and all nested values."""
        if type_ in (b"[", b"{"):
            yield from self.container(path, type_ == b"{", depth)
        elif type_ in CONSTANTS:
            yield Value(self.name(path), CONSTANTS[type_])
        elif type_ in BINARY:
            bits = self.number(type_)
            yield Value(self.name(path), exact_float(bits) if isinstance(bits, float) else str(bits))
        elif type_ in (b"S", b"H", b"C"):
            length = 1 if type_ == b"C" else self.length(self.marker())
            kind = {b"S": "", b"H": "number ", b"C": "character "}[type_]
            yield Value(self.name(path), f"{kind}{self.text(length)!r}")
        else:
            raise self.fail(f"{type_!r} is no type")

    def container(self, path: str, is_object: bool, depth: int) -> Iterator[Part]:
        """Yield the values of an array or object, then its length."""
        if depth >= self.limits.nesting:
            raise self.fail(f"values are nested more than {self.limits.nesting} levels deep")
        type_, count = self.type_and_count()
        if type_ in BINARY and not is_object:
            yield self.tensor(path, type_, count or 0)
            return
        if type_ in CONSTANTS and not is_object:
            yield Value(self.name(path), f"list of {count} times {CONSTANTS[type_]}")
            return
        count_read = 0
        while count is None or count_read < count:
            first = self.marker() if is_object or not type_ else type_
            if count is None and first == (b"}" if is_object else b"]"):
                break
            key = escaped(self.text(self.length(first))) if is_object else str(count_read)
            child_path = f"{path}/{key}" if path else key
            yield from self.value(child_path, (type_ or self.marker()) if is_object else first, depth + 1)
            count_read += 1
        yield Value(self.name(path), f"{'object' if is_object else 'list'} of {count_read}")

    def type_and_count(self) -> tuple[bytes, int | None]:
        """Read the optional type and count of the values in a container."""
        type_, count = b"", None
        if self.source.read(self.cursor.at, 1) == b"$":
            self.cursor.read(1)
            type_ = self.cursor.read(1)
        if self.source.read(self.cursor.at, 1) == b"#":
            self.cursor.read(1)
            count = self.length(self.cursor.read(1))
        elif type_:
            raise self.fail("a container has a type but no count")
        return type_, count

    def tensor(self, path: str, type_: bytes, count: int) -> TensorPart:
        dtype, form = BINARY[type_]
        data = self.cursor.skip(count * struct.calcsize(form))
        return TensorPart(self.name(path), dtype, (count,), piece(data, 0, data.size), big_endian=True)
