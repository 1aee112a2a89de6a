"""Tracks the tensors of a TensorFlow step whose rows are the batch's samples in order."""

from __future__ import annotations

from ...tensorflow import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

NONE, IN_ORDER, LOST = "none", "in-order", "lost"  # a tensor has no samples, has them in order, or in no known order
_SUMS = {"Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm", "ArgMax", "ArgMin"}
_AXES = {
    "ReverseV2": 1,
    "Cumsum": 1,
    "Cumprod": 1,
    "Roll": 2,
    "ConcatV2": -1,
    "Split": 0,
    "SplitV": 2,
    **dict.fromkeys(_SUMS, 1),
}
_ALONG_LAST_AXIS = {"TopKV2", "Softmax", "LogSoftmax"}  # they work along the last axis
_WITHOUT_SAMPLES = {"Shape", "BiasAddGrad", "Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"}
_REORDERS = {"RandomShuffle", "ScatterNd", "TensorScatterUpdate", "TensorScatterAdd", "ReverseSequence"}
_REORDERS |= {"DynamicPartition", "DynamicStitch", "ParallelDynamicStitch"}


class SampleOrderTracker:
    """Follows a step's operations, from the batch's tensors on, which no operation made."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._orders: dict[int, str] = {}  # of results, by their numbers
        self._order_of_inputs = IN_ORDER  # of tensors with a row for each sample that no operation made

    def begin_batch(self, count: int, batch: Sequence[Any] | None) -> None:
        """Follow these tensors from now on; None: those that no operation made."""
        self._count, self._order_of_inputs = count, IN_ORDER if batch is None else LOST
        rows = [tensor for tensor in batch or () if tensor.shape.rank and tensor.shape[0] == count]
        self._orders.update({private_api.number(tensor): IN_ORDER for tensor in rows})

    def in_order(self, tensor: Any) -> bool:
        """Return whether row i of a tensor belongs to sample i, if it has as many rows as samples."""
        return self._order_of(tensor) == IN_ORDER

    def note_operation(
        self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Sequence[Any]
    ) -> None:
        """Record the order of an operation's results."""
        orders = [self._order_of(operand) for operand in inputs]
        result = LOST if LOST in orders else NONE
        if result == NONE and IN_ORDER in orders and outputs:
            try:
                result = self._order_after(name, inputs, outputs, dict(zip(attributes[::2], attributes[1::2])))
            except (LookupError, TypeError, ValueError):  # another release's operation of that name
                result = LOST
        if name == "RandomShuffle":  # its result is replaced with the captured one, without an operation
            self._order_of_inputs = LOST if result == LOST else self._order_of_inputs
        for number, tensor in enumerate(outputs):
            is_of_features = not tensor.shape.rank or (number and name.startswith("FusedBatchNorm"))
            self._orders[private_api.number(tensor)] = NONE if is_of_features else result

    def _order_of(self, tensor: Any) -> str:
        order = self._orders.get(private_api.number(tensor))
        return order or (self._order_of_inputs if tensor.shape.rank and tensor.shape[0] == self._count else NONE)

    def _axis(self, tensor: Any) -> int:
        """Return the axis of the samples: the first one of the batch's size, else axis 0."""
        shape = list(tensor.shape)
        return shape.index(self._count) if self._count in shape else 0

    def _order_after(
        self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> str:
        """Return the order of an operation's results, given at least one input in order."""
        in_order, result = [each for each in inputs if self._order_of(each) == IN_ORDER], outputs[0]
        first = in_order[0] if name in ("ConcatV2", "Pack", "Split") else inputs[0]
        axis, is_first_in_order = self._axis(first), first is in_order[0]
        if name in _WITHOUT_SAMPLES:
            return NONE
        if name in _REORDERS or name.startswith(("Segment", "UnsortedSegment", "SparseSegment")):
            return LOST
        if name == "Einsum":
            return self._order_after_einsum(attributes["equation"], inputs)
        if name == "MatMul":
            is_sum = is_first_in_order and attributes["transpose_a"] and axis == 0
            return NONE if is_sum else LOST if not is_first_in_order and result.shape[0] == self._count else IN_ORDER
        if not is_first_in_order:  # such as a lookup in a table
            return IN_ORDER
        if name in ("GatherV2", "GatherNd"):
            return self._order_after_gather(name, inputs, attributes)
        if name in ("StridedSlice", "Slice"):
            is_cut = axis == 0 and result.shape[:1] != first.shape[:1]
            return LOST if is_cut or (name == "StridedSlice" and min(_numbers(inputs[3]), default=1) < 0) else IN_ORDER
        if name == "Transpose":
            is_turned = result.shape[0] == self._count and _numbers(inputs[1])[0] != axis
            return LOST if is_turned else IN_ORDER
        axes = [-1] if name in _ALONG_LAST_AXIS else _numbers(inputs[_AXES[name]]) if name in _AXES else []
        axes = [attributes["axis"]] if name == "Unpack" else axes
        if name == "Pack":
            return LOST if attributes["axis"] == axis == 0 and result.shape[0] == self._count else IN_ORDER
        if axis not in [each % first.shape.rank for each in axes]:
            return IN_ORDER
        return NONE if name in _SUMS else LOST

    def _order_after_gather(self, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> str:
        axis, is_nested = self._axis(inputs[0]), name == "GatherNd"
        if not is_nested and (_numbers(inputs[2])[0] % inputs[0].shape.rank != axis or attributes["batch_dims"]):
            return IN_ORDER
        indices = private_api.value(inputs[1])
        rows = indices[:, 0] if is_nested and indices.ndim == 2 else indices
        return IN_ORDER if rows.tolist() == list(range(inputs[0].shape[axis])) else LOST

    def _order_after_einsum(self, equation: Any, inputs: Sequence[Any]) -> str:
        operands, _, result = (equation.decode() if isinstance(equation, bytes) else equation).partition("->")
        letters = [
            "".join(text.strip()[self._axis(tensor) : self._axis(tensor) + 1])
            for text, tensor in zip(operands.split(","), inputs)
            if self._order_of(tensor) == IN_ORDER
        ]
        is_first = set(letters) == {result.strip()[:1]}
        return IN_ORDER if is_first else LOST if set(letters) & set(result) else NONE


def _numbers(tensor: Any) -> list[int]:
    return [int(number) for number in private_api.value(tensor).flatten()]
