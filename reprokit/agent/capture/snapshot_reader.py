"""Reads a snapshot, which may come from anywhere: sizes are bounded, digests checked, nothing is executed."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat

from .header import SnapshotHeader
from .store import COMPLEX, FORMAT, HEADER, MAX_HEADER, MAX_TENSORS, SIZES, TENSORS, comparable_digest, seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_RANK = 64
BLOCK = 1 << 24


class SnapshotError(Exception):
    """What is wrong with a snapshot, in one line."""


class SavedTensor:
    """A tensor of a snapshot as it lies in the file."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        self.name = name
        self.dtype = dtype  # as safetensors spells it, or C128
        self.shape = shape
        self.data = data  # read-only bytes, mapped


class SnapshotFile:
    """An open snapshot: its header (snapshot.json) and its tensors, which are read as they are asked for."""

    def __init__(self, path: str, *, check: bool = True) -> None:
        """Open the snapshot in this directory; raises SnapshotError. ``check`` reads all bytes for their digest."""
        self.path = path
        self.header = read_header(path)
        self.tensors = _tensors(path, self.header, check)

    @property
    def facts(self) -> SnapshotHeader:
        """The header, typed."""
        return SnapshotHeader.read(self.header)


def read_header(path: str) -> dict[str, Any]:
    """snapshot.json, whose seal fits."""
    where = os.path.join(path, HEADER)
    data = _read(where, path)
    try:
        header = json.loads(data.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{where} is cut short or no JSON ({_words(error)}); the snapshot cannot be used") from None
    if not isinstance(header, dict):
        raise SnapshotError(f"{where} is no JSON object; the snapshot cannot be used")
    version = header.get("format")
    if type(version) is int and version > FORMAT:
        raise SnapshotError(f"{where} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")
    if type(version) is not int or version < 1:
        raise SnapshotError(f"{where} has no format; the snapshot cannot be used")
    if header.get("check") != seal(header) or header.get("digest") != comparable_digest(header):
        raise SnapshotError(f"{where} was altered: its check does not fit; the snapshot cannot be used")
    return header


def saved_optimizers(header: SnapshotHeader, count: int) -> list[dict[str, Any]]:
    """The optimizers for so many given ones: in order; where there are more, first those whose step was captured."""
    saved, captured = list(header.optimizers), header.trigger.optimizers
    if count > len(saved):
        raise SnapshotError(f"the snapshot has {len(saved)} optimizers, not {count}")
    if count < len(saved):
        saved.sort(key=lambda entry: entry.get("name") not in captured)
    return saved[:count]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice in an object")
    return content


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name[:20]} is no number")


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _open(where: str, directory: str) -> int:
    """Return a descriptor of a regular file, never through a symbolic link."""
    if not os.path.isdir(directory):
        raise SnapshotError(f"{directory} is no directory; name the directory of a snapshot")
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SnapshotError(f"{directory} holds no {os.path.basename(where)}: it is no whole snapshot") from None
    except OSError as error:
        raise SnapshotError(f"{where}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SnapshotError(f"{where} is no regular file")
    return descriptor


def _read(where: str, directory: str) -> bytes:
    with os.fdopen(_open(where, directory), "rb") as file:
        data = file.read(MAX_HEADER + 1)
    if len(data) > MAX_HEADER:
        raise SnapshotError(f"{where} is larger than {MAX_HEADER:,} bytes; the snapshot cannot be used")
    return data


def _tensors(path: str, header: dict[str, Any], check: bool) -> dict[str, SavedTensor]:
    """Return the tensors by their names, after a look at all that was said of them."""
    where = os.path.join(path, TENSORS)
    facts = header.get("tensors")
    if not isinstance(facts, dict) or facts.get("file") != TENSORS:
        raise SnapshotError(f"{os.path.join(path, HEADER)} names no {TENSORS}; the snapshot cannot be used")
    descriptor = _open(where, path)
    try:
        size = os.fstat(descriptor).st_size
        if size != facts.get("size"):
            raise SnapshotError(f"{where} is cut short: it has {size:,} bytes and was written with {facts.get('size')}")
        if size < 8:
            raise SnapshotError(f"{where} is no safetensors file; the snapshot cannot be used")
        view = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)
    if check and _sha256(view) != facts.get("sha256"):
        raise SnapshotError(f"{where} was altered: its digest does not fit; the snapshot cannot be used")
    try:
        return _entries(view, header.get("complex"))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise SnapshotError(f"{where}: {_words(error)}; the snapshot cannot be used") from None


def _sha256(view: memoryview) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(view), BLOCK):
        digest.update(view[start : start + BLOCK])
    return digest.hexdigest()


def _entries(view: memoryview, complexes: Any) -> dict[str, SavedTensor]:
    length = int.from_bytes(view[:8], "little")
    if length > min(MAX_TENSORS, len(view) - 8):
        raise ValueError("its index goes beyond its end")
    index = json.loads(bytes(view[8 : 8 + length]).decode("utf-8"), object_pairs_hook=_object)
    if not isinstance(index, dict):
        raise ValueError("its index is no JSON object")
    data = view[8 + length :]
    return {name: _tensor(name, index[name], data, complexes or ()) for name in index if name != "__metadata__"}


def _tensor(name: str, entry: Any, data: memoryview, complexes: Any) -> SavedTensor:
    dtype, (start, end) = entry["dtype"], entry["data_offsets"]
    shape = tuple(entry["shape"])
    if dtype not in SIZES or len(shape) > MAX_RANK or not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
        raise ValueError(f"the entry of {name[:100]!r} is none")
    count = 1
    for size in shape:
        count *= size
    if not start <= end <= len(data) or end - start != count * SIZES[dtype]:
        raise ValueError(f"the bytes of {name[:100]!r} do not fit its shape")
    if name in complexes and dtype == "F64" and shape[-1:] == (2,):
        dtype, shape = COMPLEX, shape[:-1]
    return SavedTensor(name, dtype, shape, data[start:end])
