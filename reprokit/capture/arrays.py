"""Tensors of a snapshot as NumPy arrays; dtypes that NumPy lacks become float32, which is exact for their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from reprokit.agent.capture.store import NAMES, SavedTensor
from reprokit.core import dtypes

if TYPE_CHECKING:
    import numpy


class TensorArrays(Mapping[str, "numpy.ndarray[Any, Any]"]):
    """A mapping of names to read-only arrays, which are read when they are accessed."""

    def __init__(self, tensors: Mapping[str, SavedTensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        return array(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def array(tensor: SavedTensor) -> numpy.ndarray[Any, Any]:
    """Return a tensor as a read-only array."""
    import numpy

    def raw(kind: str) -> Any:
        return numpy.frombuffer(tensor.data, dtype=numpy.dtype(kind).newbyteorder("<"))

    if tensor.dtype != "BF16" and "_" not in tensor.dtype:
        values = raw(NAMES[tensor.dtype])
    elif tensor.dtype == "BF16":
        values = (raw("<u2").astype("<u4") << 16).view("<f4")
    else:
        small = dtypes.named(dtypes.SAFETENSORS[tensor.dtype])
        values = numpy.array([dtypes.decoded(small, byte) for byte in range(256)], dtype="<f4")[raw("u1")]
    values.flags.writeable = False
    shaped: numpy.ndarray[Any, Any] = values.reshape(tensor.shape)
    return shaped
