"""Finds the inputs of operators inside a TensorFlow function, without the function's side effects.

Before its first execution the function is executed operator by operator. Operators with effects are skipped: nothing is
assigned, printed or enqueued, and values that depend on them count as missing. If a function takes a batch from an
iterator, it is taken here, and passed to the function by an iterator that yields only this batch.
"""

from __future__ import annotations

import sys

from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.function_runs import FunctionRun, MissingValue, attributes_of, count_outputs, flat, function_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Visit = Callable[[str, Any, Any, list[Any], str], None]

MAX_EXECUTED = 100_000  # operators of one function
# Operators that TensorFlow marks as stateful, but which have no visible effect.
_HARMLESS = frozenset(
    "HashTableV2 LookupTableFindV2 LookupTableSizeV2 MultinomialV2 Multinomial OptionalFromValue"
    " ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform"
    " RandomUniformInt ReadVariableOp ResourceGather ResourceGatherNd TruncatedNormal VarHandleOp VarIsInitializedOp"
    " VariableShape".split()
)
_NEXT = "IteratorGetNext"
_AT_ONCE = "its function takes several batches from an iterator in one call"
_ELEMENT = ("output_types", "output_shapes")
_SEEDS = {"seed": 0x7265, "seed2": 0x70726F}  # with the script's seeds a kernel might be shared with its calls


class FunctionInputs:
    """Executes one function; calls visit with each operator and its inputs."""

    def __init__(self, execute: Callable[..., Any], convert: Any, visit: Visit, inputs: Sequence[Any]) -> None:
        self._execute = execute
        self._convert = convert
        self._visit = visit  # called with name of the inner function, node, definition, inputs, and problem
        self._inputs = inputs
        self._find = private_api.module("context").context().get_function_def
        self._replacement: tuple[int, Any] | None = None  # position and iterator, which yields only the taken batch
        self._batches = 0
        self._left = MAX_EXECUTED

    def begin(self, name: Any) -> None:
        """Execute the function of this name."""
        self._batches = self._count_batches(name)
        FunctionRun(self).run(name, "", list(self._inputs))

    def replaced_inputs(self) -> Any:
        """Return the inputs with an iterator that yields the taken batch; None if none was taken."""
        if self._replacement is None:
            return None
        position, iterator = self._replacement
        inputs = list(self._inputs)
        inputs[position] = iterator
        return inputs if isinstance(self._inputs, list) else tuple(inputs)

    def _count_batches(self, name: Any) -> int:
        """Return the number of batches taken from iterators; those in loops or branches count twice."""
        count = 0
        for node in self._find(name).node_def:
            count += node.op == _NEXT and ":" not in node.input[0]  # otherwise the function creates the iterator itself
            weight = 1 if node.op.endswith("PartitionedCall") else 2
            count += sum(weight * self._count_batches(inner) for inner in function_names(node))
        return count

    def follows(self, node: Any) -> bool:
        """Return whether to execute the functions that a node calls, unless the limit is reached."""
        self._left -= 1
        return self._left > 0

    def result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any] | MissingValue:
        """Return the outputs of an operator, or the reason why it was not executed."""
        self._left -= 1
        if self._left <= 0:
            return MissingValue("its inputs come out of a function that executes too many operators")
        if any(function_names(node)):
            return MissingValue(f"its inputs come out of {node.op}, which calls functions")
        missing = next((value for value in inputs if isinstance(value, MissingValue)), None)
        if definition is not None:
            self._visit(owner, node, definition, inputs, "" if missing is None else missing.why)
        if missing is not None:
            return missing
        if node.op == _NEXT:
            return self._next(node, definition, inputs[0])
        if definition is None or (definition.is_stateful and node.op not in _HARMLESS):
            return MissingValue(f"its inputs come out of {node.op}, which has effects")
        try:
            if node.op == "Const":
                return [self._convert(sys.modules["tensorflow"].make_ndarray(node.attr["value"].tensor))]
            attributes = attributes_of(node, definition)
            if "seed2" in attributes:
                attributes.update(_SEEDS)
            return self._execute(node.op, inputs, flat(attributes), count_outputs(definition, attributes))  # type: ignore[no-any-return]
        except Exception as error:
            pass_on(error)
            return MissingValue(f"its inputs could not be had: {type(error).__name__}")

    def _next(self, node: Any, definition: Any, handle: Any) -> list[Any] | MissingValue:
        """Take a batch from an iterator, and prepare its replacement."""
        position = next((number for number, value in enumerate(self._inputs) if value is handle), None)
        if position is None:
            return MissingValue("its inputs come out of an iterator that the function makes itself")
        if self._batches > 1:
            return MissingValue(_AT_ONCE)
        attributes = attributes_of(node, definition)
        flat = [part for name in _ELEMENT for part in (name, attributes[name])]
        types = attributes[_ELEMENT[0]]
        try:  # before the batch is taken, as it cannot be put back
            iterator = self._execute("AnonymousIteratorV3", [], flat, 1)[0]
        except Exception as error:
            pass_on(error)
            return MissingValue("its function's iterator cannot be replaced in this version of TensorFlow")
        try:
            batch = list(self._execute(_NEXT, [handle], flat, len(types)))
        except Exception as error:
            pass_on(error)
            return MissingValue("its function found its iterator at the end")
        shapes = ("Toutput_types", types, "output_shapes", [list(tensor.shape) for tensor in batch])
        (dataset,) = self._execute("TensorDataset", batch, shapes, 1)
        self._execute("MakeIterator", [dataset, iterator], (), 0)
        self._replacement = position, iterator
        return batch
