"""Compares two tensors of the same type and shape, chunk by chunk in bounded memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from reprokit import dtypes, native
from reprokit.artifacts.elements import Limits, TensorPart
from reprokit.artifacts.sources import BLOCK, exactly, fill_exactly
from reprokit.artifacts.statistics import Extreme, TensorStatistics, Tolerance, merged
from reprokit.dtypes import Dtype
from reprokit.errors import ArtifactDamaged

TILE = 1 << 18  # elements of a piece of tensors that do not lie in C order
SPARSE = 8  # a run is read in one go while at most this many times what is needed of it
MAX_RANK = 64
SPREAD = 16  # elements that each byte of a source may stand for, where strides let it stand for several
FEW = 1 << 24  # elements that any source may stand for
MOST = 64 << 30  # bytes of all tensors of a file, beside SPREAD times its size


def check(tensor: TensorPart, limits: Limits) -> Dtype:
    """The type of a tensor whose elements all lie within its source."""
    dtype = dtypes.named(tensor.dtype)
    if len(tensor.shape) > MAX_RANK or any(length < 0 for length in tensor.shape):
        raise ArtifactDamaged(f"{tensor.name}: no tensor has the shape {str(tensor.shape)[:80]}")
    last = _last_byte(tensor, dtype)
    if tensor.offset < 0 or last > tensor.source.size:
        raise ArtifactDamaged(f"{tensor.name} needs {last} bytes, there are {tensor.source.size}")
    if math.prod(tensor.shape) > max(SPREAD * tensor.source.size, FEW):
        raise ArtifactDamaged(f"{tensor.name} has more elements than its bytes can stand for")
    return dtype


def _last_byte(tensor: TensorPart, dtype: Dtype) -> int:
    count = math.prod(tensor.shape)
    if count == 0 or _in_order(tensor):
        return tensor.offset + dtype.file_size(count)
    if dtype.packed or len(tensor.strides or ()) != len(tensor.shape) or any(s < 0 for s in tensor.strides or ()):
        raise ArtifactDamaged(f"{tensor.name}: no tensor of this type and shape has such strides")
    steps = zip(tensor.shape, tensor.strides or (), strict=True)
    return tensor.offset + (1 + sum((length - 1) * stride for length, stride in steps)) * dtype.element_size


def _in_order(tensor: TensorPart) -> bool:
    """Whether the elements stand in C order without gaps."""
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
    """What two tensors differ in; their types and shapes must be the same."""
    dtype = check(left, limits)
    check(right, limits)
    count = math.prod(left.shape)
    if count == 0:
        return TensorStatistics(0)
    limits.spent.compared += dtype.file_size(count)
    if limits.spent.compared > MOST + SPREAD * left.source.size:
        raise ArtifactDamaged("its tensors come to many times the bytes that it has")
    meter = _Meter(dtype, left.big_endian, right.big_endian, tolerance or Tolerance())
    if _in_order(left) and _in_order(right):
        return _compare_in_order(left, right, dtype, count, meter)
    if left.strides == right.strides and left.big_endian == right.big_endian and _same_bytes(left, right, dtype):
        return TensorStatistics(count)
    return _compare_tiles(left, right, dtype, meter)


class _Meter:
    """The native comparison of one pair of tensors, with what it has found so far."""

    def __init__(self, dtype: Dtype, left_big: bool, right_big: bool, tolerance: Tolerance):
        self._ffi, self._library = native.artifacts()
        self._format = dtypes.native_format(dtype)
        self._orders = left_big, right_big
        self._tolerance = self._ffi.new(
            "struct rka_tolerance *", [tolerance.absolute, tolerance.relative, min(tolerance.ulp, (1 << 64) - 1)]
        )
        self._found = self._ffi.new("struct rka_measured *")

    def add(self, left: bytearray, right: bytearray, count: int, base: int) -> None:
        """Compare so many elements, of which the first has the index base."""
        one, other = self._ffi.from_buffer(left), self._ffi.from_buffer(right)
        big, other_big = self._orders
        self._library.rka_compare(
            self._format, self._tolerance, one, big, other, other_big, count, base, self._found
        )  # fmt: skip

    def taken(self) -> TensorStatistics:
        """What was found since the last time."""
        found, self._found = self._found, self._ffi.new("struct rka_measured *")
        return _statistics(found)


def _statistics(found: Any) -> TensorStatistics:
    histogram = list(found.histogram)
    while histogram and not histogram[-1]:
        histogram.pop()
    return TensorStatistics(
        elements=found.compared,
        differing=found.differing,
        first=found.first if found.differing else None,
        beyond=found.beyond,
        first_beyond=found.first_beyond if found.beyond else None,
        absolute=_extreme(found.absolute) if found.finite else None,
        relative=_extreme(found.relative) if found.finite else None,
        ulp=_extreme(found.ulp) if found.finite else None,
        histogram=tuple(histogram),
        sign_change=found.sign_change,
        zero_sign=found.zero_sign,
        nan_payload=found.nan_payload,
        nan=found.nan,
        infinite=found.infinite,
    )


def _extreme(found: Any) -> Extreme:
    return Extreme(found.value, found.whole, found.at)


def _compare_in_order(left: TensorPart, right: TensorPart, dtype: Dtype, count: int, meter: _Meter) -> TensorStatistics:
    step = max(1, 8 * BLOCK // dtype.bits // 8 * 8 if dtype.packed else BLOCK // dtype.element_size)
    sides = [_ElementReader(tensor, dtype, min(step, count)) for tensor in (left, right)]
    for base in range(0, count, step):
        some = min(step, count - base)
        one, other = (side.elements(base, some) for side in sides)
        meter.add(one, other, some, base)
    return meter.taken()


class _ElementReader:
    """Elements of a tensor in C order, some at a time, in memory that is used again."""

    def __init__(self, tensor: TensorPart, dtype: Dtype, most: int):
        self._tensor, self._dtype = tensor, dtype
        self._bytes = bytearray(dtype.file_size(most) + 1)
        self._codes = bytearray(most) if dtype.packed else self._bytes

    def elements(self, first: int, count: int) -> bytearray:
        """So many elements from `first` on, which of packed ones is a multiple of eight."""
        offset = self._tensor.offset + self._dtype.file_size(first)
        with memoryview(self._bytes) as view:
            fill_exactly(self._tensor.source, offset, view[: self._dtype.file_size(count)])
        if self._dtype.packed:
            ffi, library = native.artifacts()
            library.rka_unpack(self._dtype.bits, 0, count, ffi.from_buffer(self._bytes), ffi.from_buffer(self._codes))
        return self._codes


def _same_bytes(left: TensorPart, right: TensorPart, dtype: Dtype) -> bool:
    """Whether all the bytes that two tensors of the same strides span are equal."""
    size = _last_byte(left, dtype) - left.offset
    for at in range(0, size, BLOCK):
        some = min(BLOCK, size - at)
        if exactly(left.source, left.offset + at, some) != exactly(right.source, right.offset + at, some):
            return False
    return True


def strides_of(tensor: TensorPart) -> tuple[int, ...]:
    """The strides in elements, also of a tensor in C order."""
    return strides_of_shape(tensor.shape) if tensor.strides is None else tensor.strides


@dataclass(frozen=True)
class _Tile:
    """A box of indices: where it begins, and how far it goes in each dimension."""

    origin: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.lengths)


def _compare_tiles(left: TensorPart, right: TensorPart, dtype: Dtype, meter: _Meter) -> TensorStatistics:
    strides = strides_of(left), strides_of(right)
    result = TensorStatistics(0)
    for tile in _tiles(left.shape, *strides):
        one, other = (_gathered(side, own, dtype, tile) for side, own in zip((left, right), strides, strict=True))
        meter.add(one, other, tile.count, 0)
        result = merged(result, _moved(meter.taken(), tile, left.shape))
    return result


def _tiles(shape: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> Iterator[_Tile]:
    lengths = _tile_lengths(shape, left, right)
    starts = [range(0, length, step) for length, step in zip(shape, lengths, strict=True)]
    for origin in itertools.product(*starts):
        box = zip(origin, lengths, shape, strict=True)
        yield _Tile(origin, tuple(min(step, whole - start) for start, step, whole in box))


def _tile_lengths(shape: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> list[int]:
    """A box of about TILE elements that is long where either side has its elements close together."""
    lengths = [1] * len(shape)
    orders = [sorted(range(len(shape)), key=lambda i, side=side: side[i]) for side in (left, right)]  # type: ignore[misc]
    while math.prod(lengths) < TILE and lengths != list(shape):
        for order in orders:
            axis = next((i for i in order if lengths[i] < shape[i]), None)
            if axis is not None and math.prod(lengths) < TILE:
                lengths[axis] = min(2 * lengths[axis], shape[axis])
    return lengths


def _moved(found: TensorStatistics, tile: _Tile, shape: tuple[int, ...]) -> TensorStatistics:
    """The statistics of a tile with the indices of the whole tensor."""
    from dataclasses import replace

    from reprokit.artifacts.statistics import multi_index

    def whole(at: int) -> int:
        index = 0
        for start, inside, length in zip(tile.origin, multi_index(at, tile.lengths), shape, strict=True):
            index = index * length + start + inside
        return index

    def place(at: int | None) -> int | None:
        return None if at is None else whole(at)

    def extreme(one: Extreme | None) -> Extreme | None:
        return None if one is None else replace(one, at=whole(one.at))

    return replace(
        found,
        first=place(found.first),
        first_beyond=place(found.first_beyond),
        absolute=extreme(found.absolute),
        relative=extreme(found.relative),
        ulp=extreme(found.ulp),
    )


def _gathered(tensor: TensorPart, strides: tuple[int, ...], dtype: Dtype, tile: _Tile) -> bytearray:
    """The elements of a tile in C order."""
    ffi, library = native.artifacts()
    size = dtype.element_size
    result = bytearray(tile.count * size)
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    outer = _outer(tile, strides, order)
    inner = [0 if axis in outer else length for axis, length in enumerate(tile.lengths)]
    span = 1 + sum((length - 1) * strides[axis] for axis, length in enumerate(inner) if length)
    within = strides_of_shape(tile.lengths)
    base = sum(start * stride for start, stride in zip(tile.origin, strides, strict=True))
    axes = [axis for axis, length in enumerate(inner) if length]
    shape, steps = [tile.lengths[i] for i in axes], [strides[i] for i in axes]
    targets = [within[i] for i in axes]
    scatter = _scatterer(ffi, library, size, shape, steps, targets)
    target = ffi.from_buffer(result)
    for index in itertools.product(*(range(tile.lengths[axis]) for axis in outer)):
        at = base + sum(i * strides[axis] for i, axis in zip(index, outer, strict=True))
        to = sum(i * within[axis] for i, axis in zip(index, outer, strict=True))
        data = exactly(tensor.source, tensor.offset + at * size, span * size)
        scatter(ffi.from_buffer(data), target + to * size)
    return result


def strides_of_shape(shape: tuple[int, ...], fortran: bool = False) -> tuple[int, ...]:
    """How many elements lie between neighbors of each dimension."""
    steps, step = [], 1
    for length in shape if fortran else reversed(shape):
        steps.append(step)
        step *= max(1, length)
    return tuple(steps) if fortran else tuple(reversed(steps))


def _outer(tile: _Tile, strides: tuple[int, ...], order: list[int]) -> list[int]:
    """The dimensions, from the widest on, that are walked through, since reading across them reads too much."""
    outer: list[int] = []
    for position in range(len(order)):
        rest = order[position:]
        span = 1 + sum((tile.lengths[axis] - 1) * strides[axis] for axis in rest)
        if span <= SPARSE * math.prod(tile.lengths[axis] for axis in rest):
            break
        outer.append(order[position])
    return outer


def _scatterer(
    ffi: Any, library: Any, size: int, shape: list[int], steps: list[int], targets: list[int]
) -> Callable[[Any, Any], None]:
    lengths = ffi.new("uint64_t[]", shape or [1])
    sources, places = ffi.new("int64_t[]", steps or [0]), ffi.new("int64_t[]", targets or [0])

    def scatter(source: Any, target: Any) -> None:
        library.rka_gather(size, len(shape), lengths, sources, places, source, target)

    return scatter
