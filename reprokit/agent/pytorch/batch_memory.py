"""Where a batch lies: by it the arguments of a model's call are known to be values of the batch, or parts of them."""

from __future__ import annotations

import sys
import weakref

from ..events import BatchMoved, tell
from .tensors import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.patching import Function
    from ..events import Events

MAX_VALUES = 64  # tensors and arrays of a batch, or of a call
MAX_OBJECTS = 512  # that are searched for them
_SEQUENCES = (list, tuple, set, frozenset)
_ATOMS = frozenset([int, float, bool, str, bytes, complex, type(None)])


class MemoryOfValues:
    """Where the tensors and arrays of a batch, or of a call, lie; they are not kept alive."""

    __slots__ = ("_places",)

    def __init__(self, value: Any) -> None:
        self._places: dict[int, tuple[Any, int]] = {}  # by first address: reference and end
        for part in _values_in(value):
            _add_place(self._places, part)

    def is_alive(self) -> bool:
        """Return whether one of the values is still there."""
        return any(reference() is not None for reference, _ in self._places.values())

    def values_in(self, arguments: MemoryOfValues) -> set[int]:
        """Return the addresses at which both have a value that is still there."""
        places = self._places
        return {start for start in arguments._places if start in places and places[start][0]() is not None}

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


def _values_in(value: Any) -> Iterator[Any]:
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


def _add_place(places: dict[int, tuple[Any, int]], value: Any) -> None:
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
        places[start] = weakref.ref(value), start + size
