"""Finds the inputs that operators have inside of a TensorFlow function, without doing what the function does.

Before its first execution the function is executed operator by operator. What has effects is left out: nothing is
assigned, printed or enqueued, and what would be computed of it is told as missing. Where a function takes a batch from
an iterator, the batch is taken here, and handed to the function by an iterator that has only this one.
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
# Operators that TensorFlow counts as stateful, but which change nothing that anybody else sees.
_HARMLESS = frozenset(
    "HashTableV2 LookupTableFindV2 LookupTableSizeV2 MultinomialV2 Multinomial OptionalFromValue"
    " ParameterizedTruncatedNormal RandomGamma RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform"
    " RandomUniformInt ReadVariableOp ResourceGather ResourceGatherNd TruncatedNormal VarHandleOp VarIsInitializedOp"
    " VariableShape".split()
)
_NEXT = "IteratorGetNext"
_AT_ONCE = "its function takes several batches from an iterator in one call"
_ELEMENT = ("output_types", "output_shapes")
_SEEDS = {"seed": 0x7265, "seed2": 0x70726F}  # with those of the script a kernel could be one that its eager calls use


class FunctionInputs:
    """Executes one function, and shows each of its operators with its inputs before."""

    def __init__(self, execute: Callable[..., Any], convert: Any, visit: Visit, inputs: Sequence[Any]) -> None:
        self._execute = execute
        self._convert = convert
        self._visit = visit  # called with the name of an inner function, node, definition, inputs, and what is missing
        self._inputs = inputs
        self._find = private_api.module("context").context().get_function_def
        self._taken: tuple[int, Any] | None = None  # place of an iterator, and one that has only the batch it gave
        self._takes = 0
        self._left = MAX_EXECUTED

    def begin(self, name: Any) -> None:
        """Execute the function of this name."""
        self._takes = self._count_batches(name)
        FunctionRun(self).run(name, "", list(self._inputs))

    def instead(self) -> Any:
        """Return the inputs with an iterator that gives the batch that was taken; None where none was."""
        if self._taken is None:
            return None
        place, iterator = self._taken
        inputs = list(self._inputs)
        inputs[place] = iterator
        return inputs if isinstance(self._inputs, list) else tuple(inputs)

    def _count_batches(self, name: Any) -> int:
        """Return how many batches a function takes from iterators; one in a loop or a branch counts twice."""
        count = 0
        for node in self._find(name).node_def:
            count += node.op == _NEXT and ":" not in node.input[0]  # else it makes the iterator itself
            weight = 1 if node.op.endswith("PartitionedCall") else 2
            count += sum(weight * self._count_batches(inner) for inner in function_names(node))
        return count

    def follows(self, node: Any) -> bool:
        """Return whether what a node calls is to be executed: unless too much was."""
        self._left -= 1
        return self._left > 0

    def result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any] | MissingValue:
        """Return what an operator returns, or why it is not executed."""
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
        """Return a batch that an iterator gives."""
        place = next((number for number, value in enumerate(self._inputs) if value is handle), None)
        if place is None:
            return MissingValue("its inputs come out of an iterator that the function makes itself")
        if self._takes > 1:
            return MissingValue(_AT_ONCE)
        attributes = attributes_of(node, definition)
        flat = [part for name in _ELEMENT for part in (name, attributes[name])]
        types = attributes[_ELEMENT[0]]
        try:  # before a batch is taken, which could not be put back
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
        self._taken = place, iterator
        return batch
