"""Where a batch lies: by it the arguments of a model's call are known to be values of the batch, or parts of them."""

from __future__ import annotations

import sys
import weakref

from ..events.steps import BatchMoved, tell
from .tensors import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from ..core.patching import Function
    from ..events.steps import Events

MAX_VALUES = 64  # tensors and arrays of a batch, or of a call
MAX_OBJECTS = 512  # that are searched for them
MAX_ROWS = 1 << 16  # samples of a batch of which single ones are followed
_SEQUENCES = (list, tuple, set, frozenset)
_ATOMS = frozenset([int, float, bool, str, bytes, complex, type(None)])


class MemoryOfValues:
    """Where the tensors and arrays of a batch, or of a call, lie; they are not kept alive."""

    __slots__ = ("_known_places", "_references")

    def __init__(self, value: Any) -> None:
        self._references = [weakref.ref(part) for part in values_in(value)]
        self._known_places: dict[int, tuple[Any, int]] | None = None

    @property
    def _places(self) -> dict[int, tuple[Any, int]]:
        """By first address: reference and end; looked up when they are needed, which is seldom."""
        if self._known_places is None:
            self._known_places = {}
            for reference in self._references:
                value = reference()
                if value is not None:
                    _add_place(self._known_places, value, reference)
        return self._known_places

    def is_alive(self) -> bool:
        """Return whether one of the values is still there."""
        return any(reference() is not None for reference in self._references)

    def length_if_among(self, arguments: Iterable[Any]) -> int | None:
        """Return the number of rows of the value that is itself one of the arguments; None if none is."""
        for reference in self._references:
            value = reference()
            if value is not None and any(argument is value for argument in arguments) and value.shape:
                return int(value.shape[0])
        return None

    def values_in(self, arguments: MemoryOfValues) -> set[int]:
        """Return the addresses at which both have a value that is still there."""
        places = self._places
        return {start for start in arguments._places if start in places and places[start][0]() is not None}

    def rows_in(self, arguments: MemoryOfValues) -> tuple[Sequence[int] | None, int]:
        """Return which rows of the batch are in arguments, or None if that is not known; and how many it has."""
        found: tuple[Sequence[int] | None, int] = (None, 0)
        for start, (reference, end) in self._places.items():
            value = reference()
            for other_start, (other_reference, other_end) in arguments._places.items() if value is not None else ():
                other = other_reference()
                if other is None or not (start <= other_start and other_end <= end):
                    continue
                length = int(value.shape[0]) if value.shape else 1
                rows = range(length) if other is value else _rows_of(value, other, other_start - start, length)
                if rows is None:
                    return None, length
                if found[0] is None or len(rows) < len(found[0]):
                    found = rows, length
        return found

    def overlaps(self, arguments: MemoryOfValues) -> bool:
        """Return whether a value of one has memory of the other's."""
        return any(
            start < other_end and other_start < end
            for start, (reference, end) in self._places.items()
            if reference() is not None
            for other_start, (_, other_end) in arguments._places.items()
        )


def make_transfer(events: Events, original: Function) -> Function:
    """Wrap a library's function that copies batches to a device, to report which copy is of which batch."""

    def send_to_device(batch: Any, *arguments: Any, **keywords: Any) -> Any:
        moved = original(batch, *arguments, **keywords)
        if events.batch_moved:
            tell(events.batch_moved, BatchMoved(batch, moved))
        return moved

    return send_to_device


def values_in(value: Any) -> Iterator[Any]:
    """Yield the tensors and arrays in containers and in attributes of objects, as of classes of batches."""
    stack, seen, count, tensor = [value], 0, 0, sys.modules["torch"].Tensor
    known: set[int] = set()
    while stack and seen < MAX_OBJECTS and count < MAX_VALUES:
        part = stack.pop()
        seen += 1
        kind = type(part)
        if issubclass(kind, tensor) or hasattr(kind, "__array_interface__"):
            count += 1
            yield part
            continue
        if kind in _ATOMS or id(part) in known:
            continue
        known.add(id(part))
        if isinstance(part, dict):
            stack += part.values()
        elif isinstance(part, _SEQUENCES):
            stack += part
        elif not (isinstance(part, type) or callable(part)):
            stack += getattr(part, "__dict__", {}).values()


def _rows_of(whole: Any, part: Any, offset: int, length: int) -> Sequence[int] | None:
    """Return the rows of an array, along its first axis, that a view of it has; None if it is not made of rows."""
    (shape, strides, _, total), (part_shape, part_strides, part_size, part_total) = _layout(whole), _layout(part)
    if offset == 0 and part_total == total and 0 not in part_strides:
        return range(length)  # all of it, in whichever shape
    row = total // max(length, 1)
    if not shape or strides[0] != row or length > MAX_ROWS:
        return None
    first, column = divmod(offset, row)
    if column + _extent(part_shape, part_strides, part_size) <= row:
        return range(first, first + 1)
    step, remainder = divmod(part_strides[0], row)
    is_rows = not remainder and column + _extent(part_shape[1:], part_strides[1:], part_size) <= row
    return range(first, first + step * part_shape[0], step) if is_rows and step > 0 else None


def _layout(value: Any) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """Return shape, strides in bytes, bytes of an element, and of all elements."""
    if not is_tensor(value):
        return value.shape, value.strides, value.itemsize, value.nbytes
    size = value.element_size()
    return tuple(value.shape), tuple(stride * size for stride in value.stride()), size, size * value.numel()


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> int:
    return size + sum((length - 1) * stride for length, stride in zip(shape, strides))


def _add_place(places: dict[int, tuple[Any, int]], value: Any, reference: Any) -> None:
    """Add first address and end of a tensor's or array's values, unless it has none that are readable."""
    try:
        if not is_tensor(value):
            start, size = int(value.__array_interface__["data"][0]), int(value.nbytes)
        else:
            start, size = value.data_ptr(), value.element_size()
            if value.is_contiguous():
                size *= value.numel()
            else:
                size *= 1 + sum((length - 1) * stride for length, stride in zip(value.shape, value.stride()))
    except (RuntimeError, NotImplementedError, TypeError, KeyError):  # sparse tensors, and those without memory
        return
    if start and size > 0:
        places[start] = reference, start + size
