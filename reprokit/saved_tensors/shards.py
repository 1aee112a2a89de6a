"""Reads tensors from shards as NumPy arrays; a type that NumPy lacks is widened without loss.

bfloat16 and floats of eight bits become float32, complex32 becomes complex64.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from reprokit.core import dtypes
from reprokit.core.bounds import open_file
from reprokit.core.errors import ExtraMissing, RunDamaged, TensorUnavailable, reason

if TYPE_CHECKING:
    import numpy as np

    from reprokit.saved_tensors.index import IndexLine

    Array = np.ndarray[Any, Any]

MAX_HEADER = 64 << 20
MAX_TENSOR = 64 << 30  # bytes of one tensor; a hole in a file occupies no disk, but would fill memory
AS_NUMPY = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


class ShardEntry(msgspec.Struct, frozen=True):
    """The location of a tensor in a shard, as the shard's header states it."""

    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


def numpy() -> Any:
    """Return NumPy; raises ExtraMissing if it is not installed."""
    try:
        import numpy
    except ImportError:
        raise ExtraMissing("reading tensors", "numpy") from None
    return numpy


def name_of(key: str, line: IndexLine) -> str:
    """Return the name of the shard that a line of the index of a process refers to."""
    return f"{key}-{line.shard:06d}.safetensors"


def read(directory: Path, key: str, line: IndexLine) -> Array:
    """Return the tensor that a line of the index of a process refers to."""
    path = directory / name_of(key, line)
    where = f"{path}: {line.name[:80]!r}"
    dtype = _dtype(line.dtype, where)
    with os.fdopen(open_file(path), "rb") as file:
        status = os.fstat(file.fileno())
        entries, start = _header(path, status.st_ino, status.st_size)
        if line.key not in entries:
            raise RunDamaged(f"{where} is not in the shard; the tensor cannot be read")
        begin, end = entries[line.key].data_offsets
        size = dtype.file_size(math.prod(line.shape))
        if end - begin != size or start + end > status.st_size or size > MAX_TENSOR:
            raise RunDamaged(f"{where} has another size than its type and shape need; the tensor cannot be read")
        data = numpy().empty(size, dtype="uint8")
        file.seek(start + begin)
        if file.readinto(data) != size:
            raise RunDamaged(f"{where} is cut short; the tensor cannot be read")
    return _as_numbers(data, dtype.name).reshape(line.shape)


@lru_cache(maxsize=64)
def _header(path: Path, inode: int, size: int) -> tuple[dict[str, ShardEntry], int]:
    """Return the entries of a shard and the offset of its data; cached, as a finished shard never changes."""
    with os.fdopen(open_file(path), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(MAX_HEADER, size - 8):
            raise RunDamaged(f"{path} has no header of a safetensors file; its tensors cannot be read")
        try:
            header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            entries = {name: msgspec.json.decode(raw, type=ShardEntry) for name, raw in header.items()}
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RunDamaged(f"{path}: {reason(error)}; its tensors cannot be read") from None
    return entries, 8 + length


def _dtype(name: str, where: str) -> dtypes.Dtype:
    is_narrow_float = name.startswith("float8_")
    if name in AS_NUMPY or is_narrow_float or name in ("bfloat16", "complex32"):
        return dtypes.named(name)
    raise TensorUnavailable(f"{where} is of type {name[:40]!r}, which NumPy has no numbers for")


def _as_numbers(data: Array, name: str) -> Array:
    if name in AS_NUMPY:
        return data.view(name)
    if name == "bfloat16":
        return (data.view("<u2").astype("<u4") << 16).view("<f4")
    if name == "complex32":
        return data.view("<f2").astype("<f4").view("<c8")
    narrow: Array = _narrow_floats(name)[data]
    return narrow


@lru_cache(maxsize=16)
def _narrow_floats(name: str) -> Array:
    """Return the values of all 256 codes of an eight-bit type, as float32."""
    dtype = dtypes.named(name)
    numbers: Array = numpy().array([dtypes.decoded(dtype, code) for code in range(256)], dtype="float32")
    return numbers
