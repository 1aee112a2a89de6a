"""Reads MessagePack, as Flax writes its states: every value by its path; arrays are tensors in place.

Parsed here, as a library would create all objects of a file before their size could be limited.
Layout: https://github.com/msgpack/msgpack/blob/master/spec.md; Flax's extensions: flax/serialization.py.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator

from reprokit.core import dtypes
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits, Part, Source, TensorPart, Value
from reprokit.diff.formats.json import escaped
from reprokit.diff.sources import ForwardReader

ARRAY, COMPLEX, SCALAR = 1, 2, 3  # Flax's extensions
SCALARS = {0xCA: ">f", 0xCB: ">d"} | {0xCC + n: f">{letter}" for n, letter in enumerate("BHIQbhiq")}
CONSTANTS = {0xC0: "null", 0xC2: "false", 0xC3: "true"}
# Size of the length that follows, by type byte.
BYTES, EXTENSIONS, TEXTS = {0xC4: 1, 0xC5: 2, 0xC6: 4}, {0xC7: 1, 0xC8: 2, 0xC9: 4}, {0xD9: 1, 0xDA: 2, 0xDB: 4}
LISTS, MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}
FIXED_EXTENSIONS = {0xD4 + n: 1 << n for n in range(5)}
SHOWN_BYTES = 64  # bytes of the longest byte string shown as text


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the values of the single object in a file."""
    file = ForwardReader(source, "it")
    file.room = limits.header
    yield from _values(file, "", limits.nesting)
    if file.at != source.size:
        raise ArtifactDamaged(f"its object ends at byte {file.at}, the file at {source.size}")


def _values(file: ForwardReader, name: str, nesting: int) -> Iterator[Part]:
    if nesting < 0:
        raise ArtifactDamaged("its values are nested too deep")
    mark = file.read(1)[0]
    path, title = f"{name}/" if name else "", name or "value"
    if (count := _count(file, mark, MAPS, 0x80, 0x8F)) is not None:
        yield Value(title, f"object of {count}")
        for _ in range(count):
            yield from _values(file, f"{path}{escaped(_key(file))}", nesting - 1)
    elif (count := _count(file, mark, LISTS, 0x90, 0x9F)) is not None:
        yield Value(title, f"list of {count}")
        for number in range(count):
            yield from _values(file, f"{path}{number}", nesting - 1)
    else:
        yield _scalar(file, title, mark)


def _count(file: ForwardReader, mark: int, sizes: dict[int, int], low: int, high: int) -> int | None:
    """Return the length of a value with this type byte; None if it is of another kind."""
    if low <= mark <= high:
        return mark - low
    return int.from_bytes(file.read(sizes[mark]), "big") if mark in sizes else None


def _key(file: ForwardReader) -> str:
    mark = file.read(1)[0]
    length = _count(file, mark, TEXTS, 0xA0, 0xBF)
    if length is not None:
        return file.read(length).decode("utf-8", "backslashreplace")
    part = _scalar(file, "", mark)
    if not isinstance(part, Value):
        raise ArtifactDamaged("a key of it is an array")
    return part.text


def _scalar(file: ForwardReader, name: str, mark: int) -> Part:
    """Return a value that is neither a list nor a map as a part."""
    if mark < 0x80 or mark >= 0xE0:
        return Value(name, str(mark if mark < 0x80 else mark - 0x100))
    if mark in CONSTANTS:
        return Value(name, CONSTANTS[mark])
    if mark in SCALARS:
        (number,) = struct.unpack(SCALARS[mark], file.read(struct.calcsize(SCALARS[mark])))
        return Value(name, repr(number))
    if (length := _count(file, mark, TEXTS, 0xA0, 0xBF)) is not None:
        return Value(name, json.dumps(file.read(length).decode("utf-8", "backslashreplace")))
    if mark in BYTES:
        return _bytes(name, file.skip(int.from_bytes(file.read(BYTES[mark]), "big")))
    if mark in FIXED_EXTENSIONS or mark in EXTENSIONS:
        length = FIXED_EXTENSIONS.get(mark) or int.from_bytes(file.read(EXTENSIONS.get(mark, 0)), "big")
        kind = int.from_bytes(file.read(1), "big", signed=True)
        return _extension(name, kind, file.skip(length))
    raise ArtifactDamaged(f"byte {file.at - 1} begins no value")


def _bytes(name: str, data: Source) -> Part:
    if data.size <= SHOWN_BYTES:
        return Value(name, repr(data.read(0, data.size)))
    return TensorPart(name, "uint8", (data.size,), data)


def _extension(name: str, kind: int, data: Source) -> Part:
    if kind in (ARRAY, SCALAR):
        return _array(name, data)
    if kind == COMPLEX:
        real, imaginary = (_scalar(part, name, part.read(1)[0]) for part in _items(data, 2))
        return Value(name, f"complex({_text_of(real)}, {_text_of(imaginary)})")
    shown = data.read(0, SHOWN_BYTES)
    if data.size > len(shown):
        return TensorPart(name, "uint8", (data.size,), data)
    return Value(name, f"extension {kind}: {shown!r}")


def _text_of(part: Part) -> str:
    return part.text if isinstance(part, Value) else ""


def _items(data: Source, expected: int) -> Iterator[ForwardReader]:
    """Yield the reader for each item of a list; the caller must read the item before the next."""
    file = ForwardReader(data, "an array of it")
    if _count(file, file.read(1)[0], LISTS, 0x90, 0x9F) != expected:
        raise ArtifactDamaged("an array of it is no array of Flax's")
    for _ in range(expected):
        yield file


def _array(name: str, data: Source) -> TensorPart:
    """Return an array of Flax: a list of shape, dtype and bytes."""
    items = _items(data, 3)
    file = next(items)
    rank = _count(file, file.read(1)[0], LISTS, 0x90, 0x9F)
    if rank is None or rank > 64:
        raise ArtifactDamaged(f"{name[:80]!r} has no shape")
    lengths = [_text_of(_scalar(file, name, file.read(1)[0])) for _ in range(rank)]
    dtype = _key(next(items))
    mark = next(items).read(1)[0]
    size = int.from_bytes(file.read(BYTES.get(mark, 0)), "big")
    if mark not in BYTES or not all(text.isdecimal() for text in lengths):
        raise ArtifactDamaged(f"{name[:80]!r} is no array of Flax's")
    shape, content = tuple(map(int, lengths)), file.skip(size)
    if dtypes.named(dtype).file_size(math.prod(shape)) != size:
        raise ArtifactDamaged(f"{name[:80]!r} has another size than its type and shape need")
    return TensorPart(name, dtype, shape, content)
