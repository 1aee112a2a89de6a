"""Reads UBJSON, draft 12, without recursion: strongly typed arrays are tensors where they stand.

The types are listed at https://ubjson.org/type-reference/; all numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from reprokit.artifacts.elements import Limits, Part, Source, TensorPart, Value
from reprokit.artifacts.formats.forward_reader import ForwardReader
from reprokit.artifacts.formats.json import escaped
from reprokit.artifacts.formats.pickle_nodes import exact_float
from reprokit.artifacts.formats.pickle_walk import unused
from reprokit.artifacts.sources import piece
from reprokit.errors import ArtifactDamaged

NUMBERS = {
    b"i": ("int8", ">b"), b"U": ("uint8", ">B"), b"I": ("int16", ">h"), b"l": ("int32", ">i"), b"L": ("int64", ">q"),
    b"d": ("float32", ">f"), b"D": ("float64", ">d"),
}  # fmt: skip
LENGTHS = (b"i", b"U", b"I", b"l", b"L")
CONSTANTS = {b"Z": "null", b"T": "true", b"F": "false"}
FIRST_IN_OBJECT = (*LENGTHS, b"$", b"#")  # what may follow {
ROOT = "(root)"


@dataclass
class UbjsonLevel:
    """An array or object that is being read."""

    path: str
    is_object: bool
    type: bytes = b""  # of all that is in it
    count: int | None = None  # None until its end
    done: int = 0


class UbjsonReader:
    """One pass over a document."""

    def __init__(self, source: Source, limits: Limits):
        self.source, self.limits = source, limits
        self.cursor = ForwardReader(source, "the document")
        self.levels: list[UbjsonLevel] = []
        self.names: dict[str, int] = {}
        self.read = 0

    def fail(self, what: str) -> ArtifactDamaged:
        return ArtifactDamaged(f"UBJSON before byte {self.cursor.at}: {what}")

    def parts(self) -> Iterator[Part]:
        """All values, then nothing."""
        yield from self.value("", self.marker())
        while self.levels:
            level = self.levels[-1]
            step = self.next_in(level)
            if step is None:
                self.levels.pop()
                yield Value(self.name(level.path), f"{'object' if level.is_object else 'list'} of {level.done}")
                continue
            yield from self.value(*step)
        if self.cursor.at < self.source.size:
            raise self.fail("there are bytes behind its end")

    def name(self, path: str) -> str:
        return unused(self.names, path or ROOT)

    def marker(self) -> bytes:
        """The next type; no-operations are passed over."""
        found = self.cursor.read(1)
        while found == b"N":
            found = self.cursor.read(1)
        return found

    def next_in(self, level: UbjsonLevel) -> tuple[str, bytes] | None:
        """The path and the type of the next thing in an array or object; None at its end."""
        if level.count is not None and level.done == level.count:
            return None
        end = b"}" if level.is_object else b"]"
        first = self.marker() if level.is_object or not level.type else level.type
        if level.count is None and first == end:
            return None
        number = level.done
        level.done += 1
        if not level.is_object:
            return f"{level.path}/{number}" if level.path else str(number), first
        key = escaped(self.text(self.length(first)))
        return f"{level.path}/{key}" if level.path else key, level.type or self.marker()

    def length(self, type_: bytes) -> int:
        if type_ not in LENGTHS:
            raise self.fail(f"{type_!r} is no type of a length")
        length = int(self.number(type_))
        if length < 0:
            raise self.fail(f"a length is {length}")
        return length

    def number(self, type_: bytes) -> float | int:
        form = NUMBERS[type_][1]
        number: float | int = struct.unpack(form, self.cursor.read(struct.calcsize(form)))[0]
        return number

    def text(self, length: int) -> str:
        if length > self.limits.text:
            raise self.fail(f"a text has {length} bytes")
        try:
            return self.cursor.read(length).decode("utf-8")
        except UnicodeError:
            raise self.fail("a text is not in UTF-8") from None

    def value(self, path: str, type_: bytes) -> Iterator[Part]:
        """A value that is small, or the beginning of an array or object."""
        if type_ in (b"[", b"{"):
            yield from self.open(path, type_ == b"{")
        elif type_ in CONSTANTS:
            yield Value(self.name(path), CONSTANTS[type_])
        elif type_ in NUMBERS:
            bits = self.number(type_)
            yield Value(self.name(path), exact_float(bits) if isinstance(bits, float) else str(bits))
        elif type_ in (b"S", b"H", b"C"):
            length = 1 if type_ == b"C" else self.length(self.marker())
            kind = {b"S": "", b"H": "number ", b"C": "character "}[type_]
            yield Value(self.name(path), f"{kind}{self.text(length)!r}")
        else:
            raise self.fail(f"{type_!r} is no type")

    def open(self, path: str, is_object: bool) -> Iterator[Part]:
        if len(self.levels) >= self.limits.nesting:
            raise self.fail(f"values are nested more than {self.limits.nesting} levels deep")
        level = UbjsonLevel(path, is_object)
        self.optimised(level)
        if level.type in NUMBERS and not is_object:
            yield self.tensor(path, level)
        elif level.type in CONSTANTS and not is_object:
            yield Value(self.name(path), f"list of {level.count} times {CONSTANTS[level.type]}")
        else:
            self.levels.append(level)

    def optimised(self, level: UbjsonLevel) -> None:
        """The type and the count of a container, where it has them."""
        if self.source.read(self.cursor.at, 1) == b"$":
            self.cursor.read(1)
            level.type = self.cursor.read(1)
        if self.source.read(self.cursor.at, 1) == b"#":
            self.cursor.read(1)
            level.count = self.length(self.cursor.read(1))
        elif level.type:
            raise self.fail("a container has a type but no count")

    def tensor(self, path: str, level: UbjsonLevel) -> TensorPart:
        dtype, form = NUMBERS[level.type]
        count = level.count or 0
        found = self.cursor.skip(count * struct.calcsize(form))
        return TensorPart(self.name(path), dtype, (count,), piece(found, 0, found.size), big_endian=True)


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Every value by its path."""
    return UbjsonReader(source, limits).parts()
