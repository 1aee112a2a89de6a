"""Tensors of a snapshot as NumPy arrays; types that NumPy lacks become float32, which holds their values exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from reprokit import dtypes
from reprokit.agent.capture.store import NAMES, SavedTensor

if TYPE_CHECKING:
    import numpy


class Arrays(Mapping[str, "numpy.ndarray[Any, Any]"]):
    """The tensors by name: read-only arrays, of which only what is looked at is read."""

    def __init__(self, tensors: Mapping[str, SavedTensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        return array(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def array(tensor: SavedTensor) -> numpy.ndarray[Any, Any]:
    """One tensor as an array that nobody may write to."""
    import numpy

    def raw(kind: str) -> Any:
        return numpy.frombuffer(tensor.data, dtype=numpy.dtype(kind).newbyteorder("<"))

    if tensor.dtype != "BF16" and "_" not in tensor.dtype:
        found = raw(NAMES[tensor.dtype])
    elif tensor.dtype == "BF16":
        found = (raw("<u2").astype("<u4") << 16).view("<f4")
    else:
        small = dtypes.named(dtypes.SAFETENSORS[tensor.dtype])
        found = numpy.array([dtypes.decoded(small, byte) for byte in range(256)], dtype="<f4")[raw("u1")]
    found.flags.writeable = False
    shaped: numpy.ndarray[Any, Any] = found.reshape(tensor.shape)
    return shaped
