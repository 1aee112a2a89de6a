"""The buffers of models for the trail: state that a forward computation reads and that no optimizer updates."""

from __future__ import annotations

from operator import is_

from .. import trail_library as trail
from .series import size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .content_digests import PytorchContents


class ModelBuffers:
    """The buffers of the models that an optimizer trains, as they are after each of its steps.

    They are read at once, as the next forward computation changes them. Large ones are tables and masks as a rule, and
    take too long; where all together are large, or lie on a GPU, nothing is said of them.
    """

    def __init__(
        self, containers: list[dict[str, Any]], contents: PytorchContents, library: trail.Library, torch: Any
    ) -> None:
        self._containers = containers
        self._contents, self._library = contents, library
        self._data_ptr, self._numel = torch.Tensor.data_ptr, torch.Tensor.numel
        self._tensors: list[Any] = []
        self._places: list[tuple[int, int]] = []
        self._room: Any = None
        self._address = 0

    def digest(self) -> int | None:
        """Their digest now, 0 where there are none; None where some cannot be read."""
        tensors = [tensor for buffers in self._containers for tensor in buffers.values() if tensor is not None]
        if not tensors:
            return 0
        is_known = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not is_known or (self._address and self._lie(tensors) != self._places):
            self._look_at(tensors)
        return self._library.folded(0, self._address, len(tensors)) if self._address else None

    def _lie(self, tensors: list[Any]) -> list[tuple[int, int]]:
        return list(zip(map(self._data_ptr, tensors), map(self._numel, tensors)))

    def _look_at(self, tensors: list[Any]) -> None:
        self._tensors, self._address = tensors, 0
        if not all(map(self._contents.is_simple, tensors)):
            return
        items = [word for t in tensors for word in (t.data_ptr(), size_of(t), self._contents.salt(t))]
        if sum(items[1::3]) <= trail.SMALL:
            self._room, self._address = self._library.buffer(len(items))
            self._room[:] = items
            self._places = self._lie(tensors)
