"""Tracks the tensors of a step whose rows may not be the batch's samples in order."""

from __future__ import annotations

from ...pytorch.private_api import storage
from ...pytorch.tensors import tensors_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...pytorch.operators import PytorchOperator

_TRANSPOSES = frozenset(["aten::t", "aten::transpose", "aten::permute"])  # views
_SELECTS = frozenset(["aten::masked_select", "aten::take"])


class RowOrderTracker:
    """Follows a step's operators: a tensor is reordered if an operator reorders rows, or reads a reordered tensor."""

    def __init__(self, torch: Any, is_parameter: Callable[[Any], bool]) -> None:
        self._torch = torch
        self._is_parameter = is_parameter
        self._reordered: set[int] = set()  # storages whose rows are in no known order
        self._transposed: set[Any] = set()  # storages, or pairs with strides, whose first axis is not the samples'

    def forget(self) -> None:
        """Regard the rows of all existing tensors as samples in order."""
        self._reordered.clear()
        self._transposed.clear()

    def note_view(self, operator: PytorchOperator, args: Any, result: Any) -> None:
        """Record a transposing view of axes of one size, where the count of rows does not show the exchange."""
        first: Any = next(iter(args), None)
        if operator.name in _TRANSPOSES and first.dim() > 1 and first.shape[0] == result.shape[0]:
            if first.stride()[0] != result.stride()[0] and not self._is_parameter(first):
                self._transposed.add((storage(result), result.stride()))

    def reorders(self, operator: PytorchOperator, args: Any, kwargs: Any, result: Any) -> bool:
        """Record an operator; return whether the rows of its results may not be the batch's in order."""
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        results = [*tensors_in(result)]
        keys = [storage(tensor) for tensor in results]
        is_reordered = any(storage(tensor) in self._reordered for tensor in inputs)
        is_transposed, is_moving = any(map(self._is_transposed, inputs)), self._is_reordering(operator, args, kwargs)
        if (
            is_transposed
            and is_moving
            and not is_reordered
            and all(output.dim() < inputs[0].dim() for output in results)
        ):
            is_transposed = is_moving = False  # a sum along the first axis leaves the samples' axis first
        is_reordered = is_reordered or is_moving
        if is_reordered or is_transposed:
            (self._reordered if is_reordered else self._transposed).update(keys)
        elif not operator.changes:  # their memory may be that of an earlier, reordered tensor
            self._reordered.difference_update(keys)
            self._transposed.difference_update(keys)
        return is_reordered or is_transposed

    def _is_transposed(self, tensor: Any) -> bool:
        key = storage(tensor)
        has_strides = tensor.layout is self._torch.strided
        return key in self._transposed or (has_strides and (key, tensor.stride()) in self._transposed)

    def _is_reordering(self, operator: PytorchOperator, args: Any, kwargs: Any) -> bool:
        if operator.name in ("aten::index", "aten::_unsafe_index"):
            return not self._is_in_order(args[0], args[1][0])
        attributes = operator.attributes(args, kwargs)
        axes = attributes.get("dims", attributes.get("dim", ()))
        first = next(tensors_in(args), None)
        worked_axes = [axes] if isinstance(axes, int) else axes if isinstance(axes, list) else []
        is_along = first is not None and any(axis in (0, -first.dim()) for axis in worked_axes)
        if operator.name == "aten::stack":  # it joins rows that were made one by one, in order
            return False
        return is_along or operator.name in _SELECTS or (operator.name == "aten::roll" and axes == [])

    def _is_in_order(self, tensor: Any, index: Any) -> bool:
        """Return whether this index of the first axis keeps the order of rows."""
        if index is None:
            return True
        if index.dtype in (self._torch.bool, self._torch.uint8):
            return bool(index.all())
        return index.shape == tensor.shape[:1] and bool((index.flatten().diff() == 1).all()) and int(index[0]) == 0
