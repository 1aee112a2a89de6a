"""Reads NumPy's .npy (one array) and .npz (a zip archive of arrays)."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from reprokit.core import dtypes
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Blob, Limits, NestedFile, Noise, Part, Source, TensorPart, Value
from reprokit.diff.formats import zip as zip_format
from reprokit.diff.formats.pickle_numpy import (
    DEEPEST_RECORD,
    NUMBER_KINDS,
    ArrayElements,
    ArrayType,
    columns,
    text_meaning,
)
from reprokit.diff.formats.pickle_walk import under
from reprokit.diff.sources import piece, read_exactly
from reprokit.diff.tensors import strides_of_shape

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 16
DEEPEST = 32  # nested brackets
_TOKEN = re.compile(r"'[^'\\\n]*'|\"[^\"\\\n]*\"|[0-9]+|True|False|None|[\[\](){},:]|[ \n]+")
_TYPE = re.compile(r"([<>|=])([a-zA-Z])([0-9]{0,9})(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the array of a .npy file, and other bytes in the file."""
    yield from array("array", source)


def sequence(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the leaves of an equinox file: arrays one behind the other, perhaps behind a line of JSON."""
    at = 0
    if read_exactly(source, 0, 1) == b"{":
        line = read_exactly(source, 0, min(limits.text, source.size))
        at = line.find(b"\n") + 1
        if not at:
            raise ArtifactDamaged("its first line has no end")
        yield NestedFile("hyperparameters.json", piece(source, 0, at))
    for number in range(limits.parts):
        if at == source.size:
            return
        rest = piece(source, at, source.size - at)
        at += yield from _one(f"leaf {number}", rest)
    raise ArtifactDamaged(f"it has more than {limits.parts} arrays")


def array(name: str, source: Source) -> Iterator[Part]:
    """Yield the parts of a .npy file; `name` is the name for the array."""
    end = yield from _one(name, source)
    if end < source.size:
        yield Blob(f"{name}/bytes behind the array", piece(source, end, source.size - end))


def _one(name: str, source: Source) -> Generator[Part, None, int]:
    """Yield the parts of one array, and return where it ends."""
    header, start = _header(source)
    descr, shape, is_fortran = header["descr"], header["shape"], header["fortran_order"]
    if descr == "|O":  # a pickle, compared like other pickles
        yield Value(f"{name}/shape", str(list(shape)))
        yield NestedFile(f"{name}/objects", piece(source, start, source.size - start))
        return source.size
    type_ = _type(descr)
    if not type_.is_plain:
        yield Value(f"{name}/type", type_.text)
    size = math.prod(shape) * type_.size
    if start + size > source.size:
        raise ArtifactDamaged(f"its array needs {size} bytes, there are {source.size - start}")
    strides = strides_of_shape(shape, fortran=True) if is_fortran else None
    yield Noise(f"{name}/memory order", "Fortran" if is_fortran else "C")
    yield Noise(f"{name}/byte order", "big-endian" if type_.big_endian else "little-endian")
    if type_.fields:
        yield Value(f"{name}/shape", str(list(shape)))
        for field, tensor in columns(ArrayElements(type_, shape, is_fortran, piece(source, start, size))):
            yield replace(tensor, name=under(name, field))
    else:
        yield TensorPart(name, type_.elements, shape, source, start, strides, type_.big_endian, type_.meaning)
    end: int = start + size
    return end


def _header(source: Source) -> tuple[dict[str, Any], int]:
    """Return the header, and the offset of the data."""
    head = read_exactly(source, 0, 12)
    major, minor = head[6], head[7]
    if not head.startswith(MAGIC) or major not in (1, 2, 3) or minor != 0:
        raise ArtifactDamaged(f"its format version {major}.{minor} is not known")
    start = 10 if major == 1 else 12
    length = int.from_bytes(head[8:start], "little")
    if length > LONGEST_HEADER:
        raise ArtifactDamaged(
            f"its header is said to have {length} bytes, more than the {LONGEST_HEADER} that are read"
        )
    text = read_exactly(source, start, length).decode("utf-8" if major == 3 else "latin-1")
    return _checked(_literal(text)), start + length


def _literal(text: str) -> Any:
    """Parse a header by ast.literal_eval, after a check that it is not deeply nested."""
    depth = at = 0
    while (token := _TOKEN.match(text, at)) is not None:
        at = token.end()
        depth += (token[0] in ("(", "[", "{")) - (token[0] in (")", "]", "}"))
        if depth > DEEPEST:
            break
    if at < len(text):
        raise ArtifactDamaged("its header is damaged")
    try:
        return ast.literal_eval(text.strip(" \n"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ArtifactDamaged("its header is damaged") from None


def _checked(header: Any) -> dict[str, Any]:
    if not isinstance(header, dict) or header.keys() != {"descr", "shape", "fortran_order"}:
        raise ArtifactDamaged("its header has other entries than descr, shape and fortran_order")
    shape = header["shape"]
    is_shape = isinstance(shape, tuple) and all(type(length) is int and length >= 0 for length in shape)
    if not is_shape or len(shape) > 64 or not isinstance(header["fortran_order"], bool):
        raise ArtifactDamaged("its header names no shape")
    return header


def _type(descr: Any, depth: int = 0) -> ArrayType:
    """Return the type of the elements; of records with their fields."""
    if isinstance(descr, list) and descr and depth <= DEEPEST_RECORD:
        return _record_type(descr, depth)
    match = _TYPE.fullmatch(descr) if isinstance(descr, str) else None
    if match is None:
        raise ArtifactDamaged(f"its type {str(descr)[:40]!r} is not known")
    order, kind, digits, unit = match.groups()
    size, big_endian = int(digits or 0), order == ">"
    if (elements := NUMBER_KINDS.get(f"{kind}{size}")) is not None:
        is_time = kind in "mM"
        text = f"{kind}8{unit or ''}" if is_time else elements
        return ArrayType(text, elements, size, big_endian, meaning=text if is_time else "")
    width = 4 * size if kind == "U" else size
    is_long = size in {"f": (10, 12, 16), "c": (20, 24, 32)}.get(kind, ())
    if not (is_long or kind in "SVUa") or not 0 < width <= dtypes.LONGEST_RAW:
        raise ArtifactDamaged(f"its type {descr[:40]!r} is not known")
    return ArrayType(descr, f"raw{width}", width, meaning=text_meaning(kind, is_big=big_endian))


def _record_type(descr: list[Any], depth: int) -> ArrayType:
    fields, size = [], 0
    for field in descr:
        if not isinstance(field, tuple) or len(field) not in (2, 3):
            raise ArtifactDamaged("its type is not known")
        shape, name = field[2] if len(field) == 3 else (), field[0]
        if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
            raise ArtifactDamaged("its type is not known")
        type_ = _type(field[1], depth + 1)
        width = type_.size * math.prod(shape)
        if shape and type_.fields:  # records within an array within a record: their bytes
            type_ = ArrayType(type_.text, f"raw{max(1, type_.size)}", type_.size)
        if name != "" or str(field[1])[1:2] != "V":  # else it fills a gap, as NumPy writes it
            name = name[-1] if isinstance(name, tuple) and name else name  # behind its title
            fields.append((str(name), replace(type_, size=width, shape=shape) if shape else type_, size))
        size += width
    return ArrayType(str(descr), f"raw{max(1, size)}", size, fields=tuple(fields))


def archive(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the arrays of a .npz by name; other members as nested files."""
    opened = zip_format.open_archive(source, limits)
    yield from opened.around()
    for member in opened.members:
        name = member.name.removesuffix(".npy")
        if name != member.name and read_exactly(member.source, 0, min(6, member.source.size)) == MAGIC:
            yield from array(name, member.source)
        else:
            yield zip_format.part(member)
