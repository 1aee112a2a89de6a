"""Digests of NumPy arrays and of what turns into one; NumPy is used only where the training imported it."""

from __future__ import annotations

import sys

from .digests import tensor_digest, text_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .digests import Tensor


def describe_array(value: Any) -> dict[str, object]:
    """Digest, shape and dtype of an array, a tensor or a list."""
    array = as_array(value)
    if array is None:
        return {"digest": text_digest(repr(value)), "shape": [], "dtype": "text"}
    _, dtype, shape, digest = array_entry("", array)
    return {"digest": digest, "shape": shape, "dtype": dtype}


def as_array(value: Any) -> Any:
    """The value as an array of NumPy, or None where NumPy was not imported by the training."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if hasattr(value, "detach"):  # PyTorch, which refuses np.asarray of what needs a gradient or is on a GPU
        value = value.detach().cpu()
    return numpy.asarray(value)


def array_entry(name: str, array: Any) -> Tensor:
    """What metrics.jsonl holds of an array of NumPy."""
    shape, dtype = [int(size) for size in array.shape], str(array.dtype.name)
    if array.dtype.hasobject:
        return name, "text", shape, text_digest(repr(array.tolist()))
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    return name, dtype, shape, tensor_digest(dtype, shape, array_bytes(array))


def array_bytes(array: Any) -> Any:
    """The array's bytes in C order, without a copy where they lie so."""
    if array.size and array.flags.c_contiguous:
        return array.reshape(-1).view("u1").data
    return array.tobytes()
