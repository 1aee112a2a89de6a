"""Knows of which tensors of a step the rows need not be the batch's samples in their order."""

from __future__ import annotations

from ..pytorch.private_api import storage
from ..pytorch.tensors import tensors_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..observing.torch_calls import Operator

_TURNS = frozenset(["aten::t", "aten::transpose", "aten::permute"])  # views
_SELECTS = frozenset(["aten::masked_select", "aten::take"])


class RowOrderTracker:
    """Follows a step's operators: what one reads that moved rows, or works along their axis, it hands on."""

    def __init__(self, torch: Any, is_parameter: Callable[[Any], bool]) -> None:
        self._torch = torch
        self._is_parameter = is_parameter
        self._moved: set[int] = set()  # storages
        self._turned: set[Any] = set()  # storages, and storages with the strides of views, with another axis in front

    def forget(self) -> None:
        """Take what was made so far for samples in their order."""
        self._moved.clear()
        self._turned.clear()

    def viewed(self, operator: Operator, args: Any, result: Any) -> None:
        """Take in a view: where two axes have one size, the count of rows does not tell that others are in front."""
        first: Any = next(iter(args), None)
        if operator.name in _TURNS and first.dim() > 1 and first.shape[0] == result.shape[0]:
            if first.stride()[0] != result.stride()[0] and not self._is_parameter(first):
                self._turned.add((storage(result), result.stride()))

    def made(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> bool:
        """Take in an operator; return whether the rows of its results may be others than the batch's."""
        read = [*tensors_in(args), *tensors_in(kwargs)]
        results = [*tensors_in(result)]
        keys = [storage(tensor) for tensor in results]
        is_lost = any(storage(tensor) in self._moved for tensor in read)
        is_turned, is_moving = any(map(self._is_turned, read)), self._moves(operator, args, kwargs)
        if is_turned and is_moving and not is_lost and all(one.dim() < read[0].dim() for one in results):
            is_turned = is_moving = False  # a sum along the axis in front leaves the samples there
        is_lost = is_lost or is_moving
        if is_lost or is_turned:
            (self._moved if is_lost else self._turned).update(keys)
        elif not operator.changes:  # their memory may have been another's
            self._moved.difference_update(keys)
            self._turned.difference_update(keys)
        return is_lost or is_turned

    def _is_turned(self, tensor: Any) -> bool:
        key = storage(tensor)
        return key in self._turned or (key, tensor.stride()) in self._turned

    def _moves(self, operator: Operator, args: Any, kwargs: Any) -> bool:
        if operator.name in ("aten::index", "aten::_unsafe_index"):
            return not self._is_in_order(args[0], args[1][0])
        attributes = operator.attributes(args, kwargs)
        axes = attributes.get("dims", attributes.get("dim", ()))
        first = next(tensors_in(args), None)
        along = [axes] if isinstance(axes, int) else axes if isinstance(axes, list) else []
        is_along = first is not None and any(axis in (0, -first.dim()) for axis in along)
        if operator.name == "aten::stack":  # rows that are made one by one are put together in order
            return False
        return is_along or operator.name in _SELECTS or (operator.name == "aten::roll" and axes == [])

    def _is_in_order(self, tensor: Any, index: Any) -> bool:
        """Return whether this index of the first axis takes each row at its place."""
        if index is None:
            return True
        if index.dtype in (self._torch.bool, self._torch.uint8):
            return bool(index.all())
        return index.shape == tensor.shape[:1] and bool((index.flatten().diff() == 1).all()) and int(index[0]) == 0
