"""Converts predictions and true values to rows of one type; uses NumPy only if the training imported it."""

from __future__ import annotations

import struct
import sys

from ..core.digests import array_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Bytes = bytes | bytearray | memoryview

MAX_WIDTH = 1024  # characters of a label; longer ones are cut, as all rows get the longest one's width

BOOL, INTEGER, FLOAT, TEXT, OTHER = "bool", "integer", "float", "text", "other"
_KINDS = {"b": BOOL, "i": INTEGER, "u": INTEGER, "f": FLOAT, "U": TEXT}
_PLAIN = {bool: ("bool", "|b1", "?", BOOL), int: ("int64", "<i8", "q", INTEGER), float: ("float64", "<f8", "d", FLOAT)}


class Rows:
    """Values of one type; the first dimension counts the samples, and a scalar is one sample."""

    def __init__(self, dtype: str, descr: str, kind: str, shape: Sequence[int], data: Bytes, values: Any) -> None:
        self.dtype = dtype  # NumPy's name; for texts, U and their width
        self.descr = descr  # the dtype's name in .npy files
        self.kind = kind
        self.shape = [int(size) for size in shape] or [1]
        self.data = data  # C order, little-endian
        self._values = values  # a NumPy array, or a flat list of Python values

    @property
    def count(self) -> int:
        return self.shape[0]

    @property
    def elements(self) -> int:
        """The number of values."""
        number = 1
        for size in self.shape:
            number *= size
        return number

    @property
    def columns(self) -> int:
        """The number of values in a row."""
        return self.elements // self.count if self.count else 0

    @property
    def array(self) -> Any:
        """The values as a NumPy array in this shape; None without NumPy."""
        return None if isinstance(self._values, list) else self._values

    def flat(self) -> list[Any]:
        """Return the values as a flat list of Python values."""
        return self._values if isinstance(self._values, list) else self._values.reshape(-1).tolist()

    def all_in(self, allowed: Callable[[Any], Any]) -> bool:
        """Return whether a test, which takes a number or a NumPy array, holds for every value."""
        if self.array is not None:
            numpy: Any = sys.modules["numpy"]
            with numpy.errstate(all="ignore"):
                return bool(allowed(self.array).all())
        return all(allowed(value) for value in self.flat())

    def largest(self) -> list[int]:
        """Return the positions of the first largest value along the last dimension; NaN is the largest."""
        width = self.shape[-1]
        if self.array is not None:
            positions: list[int] = self.array.reshape(-1, width).argmax(axis=1).tolist()
            return positions
        flat = self.flat()
        return [_largest(flat[start : start + width]) for start in range(0, len(flat), width)]

    def with_last(self, axis: int) -> Rows:
        """Return these rows with one dimension moved to the end."""
        if self.array is None:
            return self
        numpy: Any = sys.modules["numpy"]
        return _of_array(numpy, numpy.moveaxis(self.array, axis, -1))


def _largest(row: list[Any]) -> int:
    for position, value in enumerate(row):
        if value != value:
            return position
    return max(range(len(row)), key=row.__getitem__)


def rows_of(value: Any) -> Rows:
    """Return the rows of an array, a tensor, a list, or a frame; raises TypeError or ValueError for what has none."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return _of_list(value.tolist() if hasattr(value, "tolist") else value)
    if hasattr(value, "detach"):
        return _of_torch(numpy, value.detach())
    if hasattr(value, "toarray"):  # a sparse matrix
        value = value.toarray()
    elif hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        value = value.get()
    return _of_array(numpy, numpy.asarray(value))


def _of_torch(numpy: Any, tensor: Any) -> Rows:
    """Return the rows of a PyTorch tensor; dtypes that NumPy lacks are passed as integer bits."""
    tensor = tensor.cpu()
    name = str(tensor.dtype).rpartition(".")[2]
    if name == "bfloat16" or name.startswith("float8"):
        torch: Any = sys.modules["torch"]
        bits = tensor.contiguous().view(torch.int16 if name == "bfloat16" else torch.uint8).numpy()
        return _narrow(name, bits, tensor.float().numpy())
    return _of_array(numpy, numpy.asarray(tensor.resolve_neg() if hasattr(tensor, "resolve_neg") else tensor))


def _narrow(name: str, bits: Any, values: Any) -> Rows:
    descr = "<u2" if bits.itemsize == 2 else "|u1"
    return Rows(name, descr, FLOAT, bits.shape, array_bytes(bits.view(descr)), values)


def _of_array(numpy: Any, array: Any) -> Rows:
    if array.dtype.kind == "O":
        array = _of_objects(numpy, array)
    if array.dtype.kind == "V" and array.dtype.itemsize <= 2 and array.dtype.names is None:  # of ml_dtypes
        bits = numpy.ascontiguousarray(array).view("<u2" if array.dtype.itemsize == 2 else "u1")
        return _narrow(str(array.dtype.name), bits, array.astype("f4"))
    if array.dtype.kind not in "biufcmMSU":
        raise TypeError(f"predictions of type {array.dtype.name}")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    kind = _KINDS.get(array.dtype.kind, OTHER)
    name = array.dtype.str[1:] if array.dtype.kind in "SU" else str(array.dtype.name)
    return Rows(name, array.dtype.str, kind, array.shape, array_bytes(array), array)


def _of_objects(numpy: Any, array: Any) -> Any:
    """Return Python objects as an array of their common type; as texts if they have none."""
    flat = array.reshape(-1).tolist()
    for kind, dtype in ((bool, "?"), (int, "<i8"), (float, "<f8")):
        if flat and all(type(value) is kind for value in flat):
            try:
                return numpy.array(flat, dtype=dtype).reshape(array.shape)
            except OverflowError:  # an integer beyond 64 bits
                break
    texts = [_text(value) for value in flat]
    width = max([len(text) for text in texts] or [1])
    return numpy.array(texts, dtype=f"<U{max(1, width)}").reshape(array.shape)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text[:MAX_WIDTH]


def _of_list(value: Any) -> Rows:
    """Return the rows of nested lists and tuples, without NumPy."""
    shape: list[int] = []
    flat = [value]
    while flat and isinstance(flat[0], (list, tuple)):
        shape.append(len(flat[0]))
        if any(not isinstance(part, (list, tuple)) or len(part) != shape[-1] for part in flat):
            raise ValueError("rows of different lengths")
        flat = [item for part in flat for item in part]
    kinds = {type(item) for item in flat}
    if kinds == {int, float}:
        flat, kinds = [float(item) for item in flat], {float}
    kind = kinds.pop() if len(kinds) == 1 else float if not kinds else str
    if kind in _PLAIN:
        dtype, descr, code, name = _PLAIN[kind]
        return Rows(dtype, descr, name, shape, struct.pack(f"<{len(flat)}{code}", *flat), flat)
    texts = [_text(item) for item in flat]
    width = max(1, *map(len, texts))
    data = b"".join([text.ljust(width, "\0").encode("utf-32-le", "surrogatepass") for text in texts])
    return Rows(f"U{width}", f"<U{width}", TEXT, shape, data, texts)
