"""Compares two tensors element by element and counts how they differ, within a tolerance where there is one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from reprokit.core import dtypes, native
from reprokit.core.dtypes import Dtype
from reprokit.core.errors import ArtifactDamaged
from reprokit.core.tolerance import Tolerance as Tolerance
from reprokit.diff import raw
from reprokit.diff.elements import Limits, TensorPart
from reprokit.diff.sources import BLOCK, fill_exactly, piece, read_exactly

TILE = 1 << 18  # elements of a piece of tensors that do not lie in C order
SPARSE = 8  # read a span in one go if it is at most this many times as long as the elements needed from it
MAX_RANK = 64
SPREAD = 16  # elements that may share each byte of a source (broadcast strides repeat elements)
FEW = 1 << 24  # elements that a tensor may have however small its source is
MOST = 64 << 30  # bytes compared for all tensors of a file, in addition to SPREAD times its size


@dataclass(frozen=True)
class Extreme:
    """The largest distance, and the index of the first element with it, counted in C order."""

    value: float
    whole: int  # the exact value of an integer distance (units in the last place)
    at: int


@dataclass(frozen=True)
class TensorStatistics:
    """How two tensors of the same type and shape differ; indices count elements in C order."""

    elements: int
    differing: int = 0
    first: int | None = None
    beyond: int = 0  # differing elements that the tolerance does not accept
    first_beyond: int | None = None
    absolute: Extreme | None = None  # of all pairs of finite numbers that differ
    relative: Extreme | None = None
    ulp: Extreme | None = None
    histogram: tuple[int, ...] = ()  # distances of 1, 2, 3-4, 5-8, ... units in the last place
    sign_change: int = 0
    zero_sign: int = 0  # +0 against -0
    nan_payload: int = 0  # NaN against another NaN
    nan: int = 0  # NaN against a number
    infinite: int = 0  # infinity against anything else


_COUNTS = ("differing", "beyond", "sign_change", "zero_sign", "nan_payload", "nan", "infinite")


def _larger(left: Extreme | None, right: Extreme | None) -> Extreme | None:
    if left is None or right is None:
        return left or right
    order = (left.value, left.whole, -left.at), (right.value, right.whole, -right.at)
    return left if order[0] >= order[1] else right


def _earlier(left: int | None, right: int | None) -> int | None:
    return min((index for index in (left, right) if index is not None), default=None)


def merged(left: TensorStatistics, right: TensorStatistics) -> TensorStatistics:
    """Return the combined statistics of two pieces of a tensor."""
    length = max(len(left.histogram), len(right.histogram))
    padded = [statistics.histogram + (0,) * (length - len(statistics.histogram)) for statistics in (left, right)]
    return replace(
        left,
        **{name: getattr(left, name) + getattr(right, name) for name in ("elements", *_COUNTS)},
        first=_earlier(left.first, right.first),
        first_beyond=_earlier(left.first_beyond, right.first_beyond),
        absolute=_larger(left.absolute, right.absolute),
        relative=_larger(left.relative, right.relative),
        ulp=_larger(left.ulp, right.ulp),
        histogram=tuple(map(sum, zip(*padded, strict=True))),
    )


def multi_index(at: int, shape: tuple[int, ...]) -> list[int]:
    """Convert a flat index in C order to one index per dimension."""
    indices = []
    for length in reversed(shape):
        at, index = divmod(at, length)
        indices.append(index)
    return indices[::-1]


def bucket_name(number: int) -> str:
    """Return the label of a histogram bucket: the range of its distances."""
    if number < 2:
        return str(number + 1)
    return f"{(1 << (number - 1)) + 1}-{1 << number}"


def document(statistics: TensorStatistics, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the statistics as a JSON object; indices have one number per dimension."""

    def extreme(distance: Extreme | None, *, whole: bool = False) -> dict[str, Any] | None:
        if distance is None:
            return None
        value = distance.whole if whole else distance.value
        return {"value": value if value != float("inf") else None, "at": multi_index(distance.at, shape)}

    first = statistics.first
    return {
        "elements": statistics.elements,
        "differing": statistics.differing,
        "first": None if first is None else multi_index(first, shape),
        "largest_absolute": extreme(statistics.absolute),
        "largest_relative": extreme(statistics.relative),
        "largest_ulp": extreme(statistics.ulp, whole=True),
        "ulp_histogram": {bucket_name(i): count for i, count in enumerate(statistics.histogram) if count},
        "sign_change": statistics.sign_change,
        "zero_sign_only": statistics.zero_sign,
        "nan_payload_only": statistics.nan_payload,
        "nan": statistics.nan,
        "infinite": statistics.infinite,
    }


def check(tensor: TensorPart, limits: Limits) -> Dtype:
    """Check that all elements lie within the source; return the dtype. Raises ArtifactDamaged otherwise."""
    dtype = dtypes.named(tensor.dtype)
    if len(tensor.shape) > MAX_RANK or any(length < 0 for length in tensor.shape):
        raise ArtifactDamaged(f"{tensor.name}: no tensor has the shape {str(tensor.shape)[:80]}")
    last = _end_offset(tensor, dtype)
    if tensor.offset < 0 or last > tensor.source.size:
        raise ArtifactDamaged(f"{tensor.name} needs {last} bytes, there are {tensor.source.size}")
    if math.prod(tensor.shape) > max(SPREAD * tensor.source.size, FEW):
        raise ArtifactDamaged(f"{tensor.name} has more elements than its bytes can stand for")
    return dtype


def _end_offset(tensor: TensorPart, dtype: Dtype) -> int:
    count = math.prod(tensor.shape)
    if count == 0 or _in_order(tensor):
        return tensor.offset + dtype.file_size(count)
    if dtype.packed or len(tensor.strides or ()) != len(tensor.shape) or any(s < 0 for s in tensor.strides or ()):
        raise ArtifactDamaged(f"{tensor.name}: no tensor of this type and shape has such strides")
    steps = zip(tensor.shape, tensor.strides or (), strict=True)
    return tensor.offset + (1 + sum((length - 1) * stride for length, stride in steps)) * dtype.element_size


def _in_order(tensor: TensorPart) -> bool:
    """Return whether the elements are contiguous in C order."""
    if tensor.strides is None:
        return True
    if len(tensor.strides) != len(tensor.shape):
        return False
    expected = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def compare(
    left: TensorPart, right: TensorPart, limits: Limits, tolerance: Tolerance | None = None
) -> TensorStatistics:
    """Return how two tensors of the same dtype and shape differ."""
    dtype = check(left, limits)
    check(right, limits)
    count = math.prod(left.shape)
    if count == 0:
        return TensorStatistics(0)
    limits.spent.compared += dtype.file_size(count)
    if limits.spent.compared > MOST + SPREAD * left.source.size:
        raise ArtifactDamaged("its tensors come to many times the bytes that it has")
    meter = _NativeMeter(dtype, left.big_endian, right.big_endian, tolerance or Tolerance())
    if _in_order(left) and _in_order(right):
        return _compare_in_order(left, right, dtype, count, meter)
    if left.strides == right.strides and left.big_endian == right.big_endian and _same_bytes(left, right, dtype):
        return TensorStatistics(count)
    return _compare_tiles(left, right, dtype, meter)


class _NativeMeter:
    """Compares one pair of tensors in native code, and holds the statistics so far."""

    def __init__(self, dtype: Dtype, left_big: bool, right_big: bool, tolerance: Tolerance):
        self._ffi, self._library = native.artifacts()
        self._format = dtypes.native_format(dtype)
        self._orders = left_big, right_big
        self._tolerance = self._ffi.new(
            "struct rka_tolerance *", [tolerance.absolute, tolerance.relative, min(tolerance.ulp, (1 << 64) - 1)]
        )
        self._measured = self._ffi.new("struct rka_measured *")

    def add(self, left: bytearray, right: bytearray, count: int, base: int) -> None:
        """Compare `count` elements; the first of them has the flat index `base`."""
        left_buffer, right_buffer = self._ffi.from_buffer(left), self._ffi.from_buffer(right)
        left_big, right_big = self._orders
        self._library.rka_compare(
            self._format, self._tolerance, left_buffer, left_big, right_buffer, right_big, count, base, self._measured
        )  # fmt: skip

    def take_statistics(self) -> TensorStatistics:
        """Return the statistics since the last call, and reset them."""
        measured, self._measured = self._measured, self._ffi.new("struct rka_measured *")
        return _statistics(measured)


def _statistics(measured: Any) -> TensorStatistics:
    histogram = list(measured.histogram)
    while histogram and not histogram[-1]:
        histogram.pop()
    extremes: dict[str, Any] = {
        name: _extreme(getattr(measured, name)) for name in ("absolute", "relative", "ulp") if measured.finite
    }
    return TensorStatistics(
        elements=measured.compared,
        first=measured.first if measured.differing else None,
        first_beyond=measured.first_beyond if measured.beyond else None,
        histogram=tuple(histogram),
        **{name: getattr(measured, name) for name in _COUNTS},
        **extremes,
    )


def _extreme(measured: Any) -> Extreme:
    return Extreme(measured.value, measured.whole, measured.at)


def _compare_in_order(
    left: TensorPart, right: TensorPart, dtype: Dtype, count: int, meter: _NativeMeter
) -> TensorStatistics:
    step = max(1, 8 * BLOCK // dtype.bits // 8 * 8 if dtype.packed else BLOCK // dtype.element_size)
    readers = [_ElementReader(tensor, dtype, min(step, count)) for tensor in (left, right)]
    for base in range(0, count, step):
        length = min(step, count - base)
        left_elements, right_elements = (reader.elements(base, length) for reader in readers)
        meter.add(left_elements, right_elements, length, base)
    return meter.take_statistics()


class _ElementReader:
    """Reads the elements of a tensor in C order, a block at a time, into a reused buffer."""

    def __init__(self, tensor: TensorPart, dtype: Dtype, capacity: int):
        self._tensor, self._dtype = tensor, dtype
        self._bytes = bytearray(dtype.file_size(capacity) + 1)
        self._codes = bytearray(capacity) if dtype.packed else self._bytes

    def elements(self, first: int, count: int) -> bytearray:
        """Return `count` elements from `first` on; for packed dtypes `first` must be a multiple of eight."""
        offset = self._tensor.offset + self._dtype.file_size(first)
        with memoryview(self._bytes) as view:
            fill_exactly(self._tensor.source, offset, view[: self._dtype.file_size(count)])
        if self._dtype.packed:
            ffi, library = native.artifacts()
            library.rka_unpack(self._dtype.bits, 0, count, ffi.from_buffer(self._bytes), ffi.from_buffer(self._codes))
        return self._codes


def _same_bytes(left: TensorPart, right: TensorPart, dtype: Dtype) -> bool:
    """Return whether two tensors of the same strides span equal bytes, gaps included."""
    size = _end_offset(left, dtype) - left.offset
    return raw.same(piece(left.source, left.offset, size), piece(right.source, right.offset, size))


def strides_of(tensor: TensorPart) -> tuple[int, ...]:
    """Return the strides in elements; contiguous tensors have theirs computed."""
    return strides_of_shape(tensor.shape) if tensor.strides is None else tensor.strides


@dataclass(frozen=True)
class _Tile:
    """A box of indices: its origin and its length in each dimension."""

    origin: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.lengths)


def _compare_tiles(left: TensorPart, right: TensorPart, dtype: Dtype, meter: _NativeMeter) -> TensorStatistics:
    strides = strides_of(left), strides_of(right)
    result = TensorStatistics(0)
    for tile in _tiles(left.shape, *strides):
        left_tile, right_tile = (
            _gather(tensor, own, dtype, tile) for tensor, own in zip((left, right), strides, strict=True)
        )
        meter.add(left_tile, right_tile, tile.count, 0)
        result = merged(result, _in_tensor_indices(meter.take_statistics(), tile, left.shape))
    return result


def _tiles(shape: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> Iterator[_Tile]:
    lengths = _tile_lengths(shape, left, right)
    starts = [range(0, side, step) for side, step in zip(shape, lengths, strict=True)]
    for origin in itertools.product(*starts):
        box = zip(origin, lengths, shape, strict=True)
        yield _Tile(origin, tuple(min(step, length - start) for start, step, length in box))


def _tile_lengths(shape: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> list[int]:
    """Return the shape of a tile of about TILE elements, longest where either tensor has the smallest strides."""
    lengths = [1] * len(shape)
    orders = [sorted(range(len(shape)), key=lambda i, side=side: side[i]) for side in (left, right)]  # type: ignore[misc]
    while math.prod(lengths) < TILE and lengths != list(shape):
        for order in orders:
            axis = next((i for i in order if lengths[i] < shape[i]), None)
            if axis is not None and math.prod(lengths) < TILE:
                lengths[axis] = min(2 * lengths[axis], shape[axis])
    return lengths


def _in_tensor_indices(statistics: TensorStatistics, tile: _Tile, shape: tuple[int, ...]) -> TensorStatistics:
    """Translate the indices in the statistics of a tile to those of the whole tensor."""

    def tensor_index(value: int) -> int:
        index = 0
        for start, inside, length in zip(tile.origin, multi_index(value, tile.lengths), shape, strict=True):
            index = index * length + start + inside
        return index

    changed: dict[str, Any] = {}
    for name in ("first", "first_beyond", "absolute", "relative", "ulp"):
        value = getattr(statistics, name)
        if isinstance(value, Extreme):
            changed[name] = replace(value, at=tensor_index(value.at))
        elif value is not None:
            changed[name] = tensor_index(value)
    return replace(statistics, **changed)


def _gather(tensor: TensorPart, strides: tuple[int, ...], dtype: Dtype, tile: _Tile) -> bytearray:
    """Copy the elements of a tile into a buffer in C order."""
    ffi, library = native.artifacts()
    size = dtype.element_size
    result = bytearray(tile.count * size)
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    outer = _outer_axes(tile, strides, order)
    inner = [0 if axis in outer else length for axis, length in enumerate(tile.lengths)]
    span = 1 + sum((length - 1) * strides[axis] for axis, length in enumerate(inner) if length)
    tile_strides = strides_of_shape(tile.lengths)
    base = sum(start * stride for start, stride in zip(tile.origin, strides, strict=True))
    axes = [axis for axis, length in enumerate(inner) if length]
    lengths = ffi.new("uint64_t[]", [tile.lengths[i] for i in axes] or [1])
    sources = ffi.new("int64_t[]", [strides[i] for i in axes] or [0])
    targets = ffi.new("int64_t[]", [tile_strides[i] for i in axes] or [0])
    target = ffi.from_buffer(result)
    for index in itertools.product(*(range(tile.lengths[axis]) for axis in outer)):
        at = base + sum(i * strides[axis] for i, axis in zip(index, outer, strict=True))
        to = sum(i * tile_strides[axis] for i, axis in zip(index, outer, strict=True))
        data = read_exactly(tensor.source, tensor.offset + at * size, span * size)
        library.rka_gather(size, len(axes), lengths, sources, targets, ffi.from_buffer(data), target + to * size)
    return result


def strides_of_shape(shape: tuple[int, ...], fortran: bool = False) -> tuple[int, ...]:
    """Return the contiguous strides of a shape, in elements, in C or Fortran order."""
    steps, step = [], 1
    for length in shape if fortran else reversed(shape):
        steps.append(step)
        step *= max(1, length)
    return tuple(steps) if fortran else tuple(reversed(steps))


def _outer_axes(tile: _Tile, strides: tuple[int, ...], order: list[int]) -> list[int]:
    """Return the axes, widest first, to iterate over: reading across them in one go would read too much."""
    outer: list[int] = []
    for position in range(len(order)):
        inner_axes = order[position:]
        span = 1 + sum((tile.lengths[axis] - 1) * strides[axis] for axis in inner_axes)
        if span <= SPARSE * math.prod(tile.lengths[axis] for axis in inner_axes):
            break
        outer.append(order[position])
    return outer
