"""Knows of which tensors of a step of TensorFlow the rows are the batch's samples in their order."""

from __future__ import annotations

from ..tensorflow import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

NONE, IN_ORDER, LOST = "none", "in-order", "lost"  # what is known of samples in a tensor: there are none, or where
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
_LAST = {"TopKV2", "Softmax", "LogSoftmax"}  # they work along the last axis
_OF_FEATURES = {"Shape", "BiasAddGrad", "Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"}
_MOVES = {"RandomShuffle", "ScatterNd", "TensorScatterUpdate", "TensorScatterAdd", "ReverseSequence"}
_MOVES |= {"DynamicPartition", "DynamicStitch", "ParallelDynamicStitch"}


class SampleRows:
    """Follows a step's operations from the batch on, whose tensors none of them made."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._known: dict[int, str] = {}  # of what operations made
        self._of_others = IN_ORDER  # of what has a row for each sample, and no operation made

    def in_order(self, tensor: Any) -> bool:
        """Return whether row i of a tensor is of sample i, if it has as many."""
        return self._of(tensor) == IN_ORDER

    def made(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Sequence[Any]) -> None:
        """Take in an operation."""
        known = [self._of(one) for one in inputs]
        result = LOST if LOST in known else NONE
        if result == NONE and IN_ORDER in known and outputs:
            try:
                result = self._after(name, inputs, outputs, dict(zip(attributes[::2], attributes[1::2])))
            except (LookupError, TypeError, ValueError):  # another release's operation of that name
                result = LOST
        if name == "RandomShuffle":  # what it gave in the captured step is put in its place, unseen
            self._of_others = LOST if result == LOST else self._of_others
        for number, tensor in enumerate(outputs):
            is_of_features = not tensor.shape.rank or (number and name.startswith("FusedBatchNorm"))
            self._known[private_api.number(tensor)] = NONE if is_of_features else result

    def _of(self, tensor: Any) -> str:
        known = self._known.get(private_api.number(tensor))
        return known or (self._of_others if tensor.shape.rank and tensor.shape[0] == self._count else NONE)

    def _axis(self, tensor: Any) -> int:
        """Return the axis of the samples; where none is as long as the batch, the first has them among others."""
        shape = list(tensor.shape)
        return shape.index(self._count) if self._count in shape else 0

    def _after(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]) -> str:
        """Return what is known of samples in the results of an operation that was given samples in their order."""
        given, result = [one for one in inputs if self._of(one) == IN_ORDER], outputs[0]
        first = given[0] if name in ("ConcatV2", "Pack", "Split") else inputs[0]
        axis, is_given = self._axis(first), first is given[0]
        if name in _OF_FEATURES:
            return NONE
        if name in _MOVES or name.startswith(("Segment", "UnsortedSegment", "SparseSegment")):
            return LOST
        if name == "Einsum":
            return self._after_einsum(attributes["equation"], inputs)
        if name == "MatMul":
            is_sum = is_given and attributes["transpose_a"] and axis == 0
            return NONE if is_sum else LOST if not is_given and result.shape[0] == self._count else IN_ORDER
        if not is_given:  # as where a table is looked up
            return IN_ORDER
        if name in ("GatherV2", "GatherNd"):
            return self._after_gather(name, inputs, attributes)
        if name in ("StridedSlice", "Slice"):
            is_cut = axis == 0 and result.shape[:1] != first.shape[:1]
            return LOST if is_cut or (name == "StridedSlice" and min(_numbers(inputs[3]), default=1) < 0) else IN_ORDER
        if name == "Transpose":
            is_turned = result.shape[0] == self._count and _numbers(inputs[1])[0] != axis
            return LOST if is_turned else IN_ORDER
        axes = [-1] if name in _LAST else _numbers(inputs[_AXES[name]]) if name in _AXES else []
        axes = [attributes["axis"]] if name == "Unpack" else axes
        if name == "Pack":
            return LOST if attributes["axis"] == axis == 0 and result.shape[0] == self._count else IN_ORDER
        if axis not in [one % first.shape.rank for one in axes]:
            return IN_ORDER
        return NONE if name in _SUMS else LOST

    def _after_gather(self, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> str:
        axis, is_nested = self._axis(inputs[0]), name == "GatherNd"
        if not is_nested and (_numbers(inputs[2])[0] % inputs[0].shape.rank != axis or attributes["batch_dims"]):
            return IN_ORDER
        indices = private_api.value(inputs[1])
        rows = indices[:, 0] if is_nested and indices.ndim == 2 else indices
        return IN_ORDER if rows.tolist() == list(range(inputs[0].shape[axis])) else LOST

    def _after_einsum(self, equation: Any, inputs: Sequence[Any]) -> str:
        read, _, result = (equation.decode() if isinstance(equation, bytes) else equation).partition("->")
        letters = [
            "".join(text.strip()[self._axis(one) : self._axis(one) + 1])
            for text, one in zip(read.split(","), inputs)
            if self._of(one) == IN_ORDER
        ]
        is_first = set(letters) == {result.strip()[:1]}
        return IN_ORDER if is_first else LOST if set(letters) & set(result) else NONE


def _numbers(tensor: Any) -> list[int]:
    return [int(number) for number in private_api.value(tensor).flatten()]
