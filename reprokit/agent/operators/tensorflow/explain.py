"""Watches a TensorFlow 2 step operation by operation, and finds the one that first gave a non-finite value.

TensorFlow reports each operation that it executes, of the forward pass and of gradients alike. It calls Python for each
gradient with tensors of the forward pass, which lead from the gradient's operations to the user's line.
"""

from __future__ import annotations

import sys

from ...capture.tensorflow_state import is_finite, limits_of, numbers
from ...capture.variables import lines_that_made, user_functions
from ...core import user_frames
from ...core.signal_errors import pass_on
from ...events.operators import BACKWARD, FORWARD, UPDATE
from ...tensorflow import private_api
from ...tensorflow.operations import OperationHooks
from ...tensorflow.training_state import as_array
from ..explain import MAX_TENSORS, CallOrigin, OperandStatistics, OperatorEvent, OperatorTrace, cause, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from ...tensorflow.operators import EagerCalled

_GENERATED = "__autograph_generated_file"
MAX_KNOWN = 2_000_000  # tensors of the forward pass whose origins are recorded
# Operations that only return existing values, and a word for these; a constant's infinities are intended.
_SOURCES = {"ReadVariableOp": "a variable", "VariableV2": "a variable", "IteratorGetNext": "the batch"}
_CONSTANTS = frozenset(["", "Const", "Fill", "Placeholder", "OnesLike", "ZerosLike", "Pack"])
_ASSIGNMENTS = frozenset(["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"])
# The forward tensor that is the first input of these gradients' operations.
_FORWARD_INPUTS = {"SqrtGrad": "saved result", "RsqrtGrad": "saved result"}
_OF_LOGARITHMS = (("Reciprocal", "Log"), ("Inv", "Log"))
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


class OperationWatcher:
    """A context manager that records this thread's eager operations, and finds the cause of non-finite values."""

    def __init__(self, samples: int = 0) -> None:
        self.trace = OperatorTrace()
        self.targets: list[Any] = []  # tensors that gradients were computed of: losses
        self._by_result: dict[int, CallOrigin] = {}  # by the number of a forward pass's result
        self._by_input: dict[tuple[str, int], CallOrigin] = {}  # by operation and input, if the result is gone
        self._gradient_stack: list[CallOrigin] = []  # forward operations whose gradients are being computed
        self._layers: list[str] = []  # of the layers being called, the outermost first
        self._updates: list[OperatorEvent] = []  # of optimizers
        self._rows = SampleOrderTracker(samples)
        self._hooks = OperationHooks(self)

    def __enter__(self) -> OperationWatcher:
        self._hooks.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hooks.end()

    def begin_batch(self, samples: int, batch: Any = None) -> None:
        """Number samples by the rows of this batch; by default, of all tensors that no operation has made."""
        self._rows.begin_batch(samples, None if batch is None else sys.modules["tensorflow"].nest.flatten(batch))

    def cause(
        self, roots: Sequence[Any], batch: Sequence[Any] = (), samples: int | None = None
    ) -> dict[str, object] | None:
        """Return result.json's entry for the first cause of these non-finite tensors; None if it is unknown.

        ``batch`` has the step's input arrays, which no operation may have made.
        """
        event = cause(self.trace.ancestors_or_all(map(private_api.number, roots)))
        if event is None:
            return None
        if not (event.is_origin or event.parents):
            bad = [_statistics("", array) for array in batch if not is_finite(array)]
            if bad:
                event.foreign_inputs, event.lines = [("the batch", statistics) for statistics in bad], None
        return {**line(event, samples), **({"phase": UPDATE} if event in self._updates else {})}

    # What is executed

    def ended(self, call: EagerCalled, _record: None) -> None:
        name, inputs, outputs = call.operator.name, call.inputs, call.outputs
        self._rows.note_operation(name, inputs, outputs, call.flat_attributes)
        phase, origin = FORWARD, None
        if self._gradient_stack:
            phase, origin = BACKWARD, self._gradient_stack[-1]
        elif len(self._by_result) < MAX_KNOWN:
            origin = CallOrigin(_of_script(call.where), self._layer())
            self._by_result.update(dict.fromkeys(_numbers_of(outputs), origin))
            self._by_input.update(dict.fromkeys([(name, key) for key in _numbers_of(inputs)], origin))
        self.trace.count += 1
        if name in _ASSIGNMENTS:
            self._assigned(*inputs[:2])
        bad = [(key, array) for key, array in _arrays(outputs) if not is_finite(array)]
        if bad:
            event = self._event(name, phase, origin or CallOrigin(_of_script(call.where), self._layer()), inputs)
            self._describe_event(event, inputs, [array for _, array in bad])
            first_bad = next(output for output in outputs if private_api.number(output) == bad[0][0])
            event.samples = None if self._rows.in_order(first_bad) else range(0)
            self.trace.add(event, [key for key, _ in bad])
            if phase == FORWARD and _in_optimizer():
                self._updates.append(event)

    def _assigned(self, variable: Any, value: Any) -> None:
        """Record which operation produced a variable's new value, if that is not finite."""
        producer = self.trace.producer([private_api.number(value)])
        self.trace.assign(producer, private_api.number(variable))

    def _event(self, name: str, phase: str, origin: CallOrigin, inputs: Sequence[Any]) -> OperatorEvent:
        event = OperatorEvent(self.trace.count, name, phase, origin)
        event.is_intended = name in _CONSTANTS
        assigned = self.trace.producer(map(private_api.number, inputs)) if name in _SOURCES else None
        event.parents += [] if assigned is None else [assigned]
        for key, array in _arrays(inputs):
            label = _FORWARD_INPUTS.get(name, "saved self" if (name, origin.gradient_of) in _OF_LOGARITHMS else "")
            event.inputs.append(_statistics("" if event.inputs else label, array))
            producer = self.trace.producer([key])
            if event.inputs[-1].nonfinite and producer is not None:
                event.parents.append(producer)
            elif event.inputs[-1].nonfinite > event.inputs[-1].nans and not array.shape:
                event.is_intended = True  # an infinite number of the script's, such as a mask's
            elif event.inputs[-1].nonfinite:
                event.foreign_inputs.append(("", event.inputs[-1]))
        if phase == FORWARD and event.foreign_inputs and not event.parents:  # no operation made them, nor the batch
            event.lines = lines_that_made(user_functions(sys._getframe(1)), lambda value: is_finite(as_array(value)))
        return event

    def _describe_event(self, event: OperatorEvent, inputs: Sequence[Any], bad: list[Any]) -> None:
        outputs = [_statistics("", array) for array in bad[:MAX_TENSORS]]
        if not (event.inputs or event.parents or event.is_intended):
            event.foreign_inputs = [(_SOURCES.get(event.name, "what the step was given"), outputs[0])]
        event.introduces_nan = any(tensor.nans for tensor in outputs) and not any(
            tensor.nans for tensor in event.inputs
        )
        input_values = [numbers(array) for _, array in _arrays(inputs)]
        event.describe(sys.modules["numpy"], event.inputs, outputs, numbers(bad[0]), input_values)

    def _layer(self) -> str:
        names = self._layers[1:] if len(self._layers) > 1 and self._layers[0][:5] != "loss " else self._layers
        return "/".join(names)

    def layer_begins(self, name: str) -> None:
        self._layers.append(name)

    def layer_ends(self) -> None:
        self._layers.pop()

    # Gradients

    def differentiated(self, targets: Sequence[Any]) -> None:
        self.targets += targets

    def gradient_begins(self, name: str, inputs: Any, outputs: Any) -> None:
        """Record which forward operation the gradient is of, by its result or its input."""
        by_output = next((self._by_result[key] for key in _numbers_of(outputs) if key in self._by_result), None)
        by_input = (self._by_input[name, key] for key in _numbers_of(inputs) if (name, key) in self._by_input)
        origin = by_output or next(by_input, None) or CallOrigin(_of_script(user_frames.where(2)))
        self._gradient_stack.append(CallOrigin(origin.where, origin.layer, name))

    def gradient_ends(self) -> None:
        self._gradient_stack.pop()


def _in_optimizer() -> bool:
    """Return whether the calling code runs within an optimizer."""
    frame = sys._getframe(1)
    while frame is not None and ".optimizers." not in str(frame.f_globals.get("__name__")):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _of_script(places: list[user_frames.Place]) -> list[user_frames.Place]:
    """Return the user's lines, without those of AutoGraph's generated code."""
    return [place for place in places if _GENERATED not in place[0]]


def _numbers_of(tensors: Any) -> Iterator[int]:
    for tensor in tensors if isinstance(tensors, (list, tuple)) else ():
        key = private_api.number(tensor)
        if key is not None:
            yield key


def _arrays(tensors: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return number and values of each tensor that has numeric values."""
    arrays = [(private_api.number(tensor), _array(tensor)) for tensor in tensors if private_api.has_value(tensor)]
    return [(key, array) for key, array in arrays if array is not None]


def _array(tensor: Any) -> Any:
    """Return the values of a tensor, without a copy if they are in host memory; None if they are not numeric."""
    try:
        dtype = tensor.dtype
        return private_api.value(tensor) if dtype.is_floating or dtype.is_integer or dtype.is_complex else None
    except Exception as error:  # it lies on a device, or is of a kind, that cannot be read
        pass_on(error)
        return None


def _statistics(name: str, array: Any) -> OperandStatistics:
    return OperandStatistics(
        sys.modules["numpy"], numbers(array), name, array.dtype.name, array.shape, limits_of(array)
    )


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
