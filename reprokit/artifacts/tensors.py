"""What comparing two tensors came to, and the place where it is judged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from reprokit import dtypes, native
from reprokit.artifacts import raw
from reprokit.artifacts.elements import Limits, TensorPart
from reprokit.artifacts.sources import BLOCK, exactly, fill_exactly, piece
from reprokit.dtypes import Dtype
from reprokit.errors import ArtifactDamaged
from reprokit.tolerance import Tolerance as Tolerance

TILE = 1 << 18  # elements of a piece of tensors that do not lie in C order
SPARSE = 8  # a run is read in one go while at most this many times what is needed of it
MAX_RANK = 64
SPREAD = 16  # elements that each byte of a source may stand for, where strides let it stand for several
FEW = 1 << 24  # elements that any source may stand for
MOST = 64 << 30  # bytes of all tensors of a file, beside SPREAD times its size


@dataclass(frozen=True)
class Extreme:
    """A largest distance, and the index of the first element that has it, counted in C order."""

    value: float
    whole: int  # the same where it is a whole number, exactly
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


def _larger(one: Extreme | None, other: Extreme | None) -> Extreme | None:
    if one is None or other is None:
        return one or other
    order = (one.value, one.whole, -one.at), (other.value, other.whole, -other.at)
    return one if order[0] >= order[1] else other


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)


def merged(one: TensorStatistics, other: TensorStatistics) -> TensorStatistics:
    """Return the statistics of two pieces of a tensor together."""
    lengths = max(len(one.histogram), len(other.histogram))
    padded = [side.histogram + (0,) * (lengths - len(side.histogram)) for side in (one, other)]
    return replace(
        one,
        **{name: getattr(one, name) + getattr(other, name) for name in ("elements", *_COUNTS)},
        first=_earlier(one.first, other.first),
        first_beyond=_earlier(one.first_beyond, other.first_beyond),
        absolute=_larger(one.absolute, other.absolute),
        relative=_larger(one.relative, other.relative),
        ulp=_larger(one.ulp, other.ulp),
        histogram=tuple(map(sum, zip(*padded, strict=True))),
    )


def multi_index(at: int, shape: tuple[int, ...]) -> list[int]:
    """Return an index counted in C order as one of each dimension."""
    found = []
    for length in reversed(shape):
        at, index = divmod(at, length)
        found.append(index)
    return found[::-1]


def bucket_name(number: int) -> str:
    """Return the distances in a bucket of the histogram."""
    if number < 2:
        return str(number + 1)
    return f"{(1 << (number - 1)) + 1}-{1 << number}"


def document(statistics: TensorStatistics, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the statistics for JSON."""

    def extreme(found: Extreme | None, *, whole: bool = False) -> dict[str, Any] | None:
        if found is None:
            return None
        value = found.whole if whole else found.value
        return {"value": value if value != float("inf") else None, "at": multi_index(found.at, shape)}

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
    """Return the type of a tensor whose elements all lie within its source."""
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
    """Return whether the elements stand in C order without gaps."""
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
    """Return what two tensors differ in; their types and shapes must be the same."""
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
        """Return what was found since the last time."""
        found, self._found = self._found, self._ffi.new("struct rka_measured *")
        return _statistics(found)


def _statistics(found: Any) -> TensorStatistics:
    histogram = list(found.histogram)
    while histogram and not histogram[-1]:
        histogram.pop()
    extremes: dict[str, Any] = {
        name: _extreme(getattr(found, name)) for name in ("absolute", "relative", "ulp") if found.finite
    }
    return TensorStatistics(
        elements=found.compared,
        first=found.first if found.differing else None,
        first_beyond=found.first_beyond if found.beyond else None,
        histogram=tuple(histogram),
        **{name: getattr(found, name) for name in _COUNTS},
        **extremes,
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
    """Return whether all the bytes that two tensors of the same strides span are equal."""
    size = _last_byte(left, dtype) - left.offset
    return raw.same(piece(left.source, left.offset, size), piece(right.source, right.offset, size))


def strides_of(tensor: TensorPart) -> tuple[int, ...]:
    """Return the strides in elements, also of a tensor in C order."""
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
    """Return a box of about TILE elements that is long where either side has its elements close together."""
    lengths = [1] * len(shape)
    orders = [sorted(range(len(shape)), key=lambda i, side=side: side[i]) for side in (left, right)]  # type: ignore[misc]
    while math.prod(lengths) < TILE and lengths != list(shape):
        for order in orders:
            axis = next((i for i in order if lengths[i] < shape[i]), None)
            if axis is not None and math.prod(lengths) < TILE:
                lengths[axis] = min(2 * lengths[axis], shape[axis])
    return lengths


def _moved(found: TensorStatistics, tile: _Tile, shape: tuple[int, ...]) -> TensorStatistics:
    """Return the statistics of a tile with the indices of the whole tensor."""

    def whole(at: int) -> int:
        index = 0
        for start, inside, length in zip(tile.origin, multi_index(at, tile.lengths), shape, strict=True):
            index = index * length + start + inside
        return index

    changed: dict[str, Any] = {}
    for name in ("first", "first_beyond", "absolute", "relative", "ulp"):
        at = getattr(found, name)
        if isinstance(at, Extreme):
            changed[name] = replace(at, at=whole(at.at))
        elif at is not None:
            changed[name] = whole(at)
    return replace(found, **changed)


def _gathered(tensor: TensorPart, strides: tuple[int, ...], dtype: Dtype, tile: _Tile) -> bytearray:
    """Return the elements of a tile in C order."""
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
    lengths = ffi.new("uint64_t[]", [tile.lengths[i] for i in axes] or [1])
    sources = ffi.new("int64_t[]", [strides[i] for i in axes] or [0])
    places = ffi.new("int64_t[]", [within[i] for i in axes] or [0])
    target = ffi.from_buffer(result)
    for index in itertools.product(*(range(tile.lengths[axis]) for axis in outer)):
        at = base + sum(i * strides[axis] for i, axis in zip(index, outer, strict=True))
        to = sum(i * within[axis] for i, axis in zip(index, outer, strict=True))
        data = exactly(tensor.source, tensor.offset + at * size, span * size)
        library.rka_gather(size, len(axes), lengths, sources, places, ffi.from_buffer(data), target + to * size)
    return result


def strides_of_shape(shape: tuple[int, ...], fortran: bool = False) -> tuple[int, ...]:
    """Return how many elements lie between neighbors of each dimension."""
    steps, step = [], 1
    for length in shape if fortran else reversed(shape):
        steps.append(step)
        step *= max(1, length)
    return tuple(steps) if fortran else tuple(reversed(steps))


def _outer(tile: _Tile, strides: tuple[int, ...], order: list[int]) -> list[int]:
    """Return the dimensions, from the widest on, that are walked through, since reading across them reads too much."""
    outer: list[int] = []
    for position in range(len(order)):
        rest = order[position:]
        span = 1 + sum((tile.lengths[axis] - 1) * strides[axis] for axis in rest)
        if span <= SPARSE * math.prod(tile.lengths[axis] for axis in rest):
            break
        outer.append(order[position])
    return outer
