"""Finds the inputs that operators have inside of a TensorFlow function, without doing what the function does.

Before its first execution the function is executed operator by operator. What has effects is left out: nothing is
assigned, printed or enqueued, and what would be computed of it is told as missing. Where a function takes a batch from
an iterator, the batch is taken here, and handed to the function by an iterator that has only this one.
"""

from __future__ import annotations

import sys

from ..tensorflow import private_api
from .tensorflow_graphs import function_names

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
_FIELDS = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}


class MissingValue:
    """Stands for a tensor that cannot be had."""

    def __init__(self, why: str) -> None:
        self.why = why


_LATER = MissingValue("its inputs come out of an operator that is executed later, in a loop")


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
        self._run(name, "", list(self._inputs))

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

    def _run(self, name: Any, owner: str, arguments: list[Any]) -> list[Any]:
        """Return what a function returns."""
        definition = self._find(name)
        values = {argument.name: value for argument, value in zip(definition.signature.input_arg, arguments)}
        nodes = [(node, [text for text in node.input if text[:1] != "^"]) for node in definition.node_def]
        last = {text: node.name for node, texts in nodes for text in texts}  # who needs it last
        last.update(dict.fromkeys(definition.ret.values(), ""))
        for node, texts in nodes:  # each after those that it takes from
            known = private_api.definition(node.op)
            result = self._result(owner, node, known, [_value(values, text) for text in texts])
            values.update(_named(node, known, result))
            for text in texts:
                if last[text] == node.name:
                    values.pop(text, None)
        return [_value(values, definition.ret[output.name]) for output in definition.signature.output_arg]

    def _result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any] | MissingValue:
        """Return what an operator returns, or why it is not executed."""
        self._left -= 1
        if self._left <= 0:
            return MissingValue("its inputs come out of a function that executes too many operators")
        if any(function_names(node)):
            return self._called(node, inputs)
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
            return self._execute(node.op, inputs, _flat(attributes), count_outputs(definition, attributes))  # type: ignore[no-any-return]
        except Exception as error:
            return MissingValue(f"its inputs could not be had: {type(error).__name__}")

    def _called(self, node: Any, inputs: list[Any]) -> list[Any] | MissingValue:
        """Return what a call, a branch or a loop returns."""
        functions = list(function_names(node))
        if node.op.endswith("PartitionedCall"):
            return self._run(functions[0], functions[0], inputs)
        if node.op in ("While", "StatelessWhile"):
            return self._loop(node.attr["cond"].func.name, node.attr["body"].func.name, inputs)
        if node.op in ("If", "StatelessIf"):
            functions = [node.attr[branch].func.name for branch in ("else_branch", "then_branch")]
        elif node.op not in ("Case", "StatelessCase"):
            return MissingValue(f"its inputs come out of {node.op}, which calls functions")
        chosen, arguments = inputs[0], inputs[1:]
        if isinstance(chosen, MissingValue):
            for function in functions:
                self._run(function, function, [chosen] * len(arguments))
            return chosen
        number = bool(chosen.numpy()) if node.op.endswith("If") else int(chosen)
        function = functions[number if 0 <= number < len(functions) else -1]
        return self._run(function, function, arguments)

    def _loop(self, condition: str, body: str, values: list[Any]) -> list[Any] | MissingValue:
        while True:
            (goes_on,) = self._run(condition, condition, values)
            if isinstance(goes_on, MissingValue):
                self._run(body, body, [goes_on] * len(values))
                return goes_on
            if not goes_on.numpy():
                return values
            values = self._run(body, body, values)

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
        except Exception:
            return MissingValue("its function's iterator cannot be replaced in this version of TensorFlow")
        try:
            batch = list(self._execute(_NEXT, [handle], flat, len(types)))
        except Exception:
            return MissingValue("its function found its iterator at the end")
        shapes = ("Toutput_types", types, "output_shapes", [list(tensor.shape) for tensor in batch])
        (dataset,) = self._execute("TensorDataset", batch, shapes, 1)
        self._execute("MakeIterator", [dataset, iterator], (), 0)
        self._taken = place, iterator
        return batch


def _value(values: dict[str, Any], text: str) -> Any:
    """Return a tensor by its name in a definition: of an argument, or "node:output:number"."""
    return values[text] if text in values else values.get(text.partition(":")[0], _LATER)


def _named(node: Any, definition: Any, result: list[Any] | MissingValue) -> dict[str, Any]:
    """Results by their names in a definition."""
    if isinstance(result, MissingValue):
        return {node.name: result}
    counts = [(argument.name, _count(argument, attributes_of(node, definition))) for argument in definition.output_arg]
    names = [f"{node.name}:{output}:{number}" for output, count in counts for number in range(count)]
    return dict(zip(names, result))


def _count(argument: Any, attributes: dict[str, Any]) -> int:
    if argument.number_attr:
        return int(attributes[argument.number_attr])
    return len(attributes[argument.type_list_attr]) if argument.type_list_attr else 1


def count_outputs(definition: Any, attributes: dict[str, Any]) -> int:
    """Return how many tensors an operator with these attributes returns."""
    return sum(_count(argument, attributes) for argument in definition.output_arg)


def attributes_of(node: Any, definition: Any) -> dict[str, Any]:
    """Return a node's attributes by name, None in the place of functions and tensors."""
    kinds = {attribute.name: attribute.type for attribute in definition.attr}
    return {name: _plain(kinds[name], value) for name, value in node.attr.items() if name in kinds}


def _flat(attributes: dict[str, Any]) -> list[Any]:
    return [part for name, value in attributes.items() if value is not None for part in (name, value)]


def _plain(kind: str, value: Any) -> Any:
    if kind == "shape":
        return _dimensions(value.shape)
    if kind == "list(shape)":
        return [_dimensions(shape) for shape in value.list.shape]
    if kind.startswith("list("):
        field = _FIELDS.get(kind[5:-1])
        return None if field is None else list(getattr(value.list, field))
    return getattr(value, _FIELDS[kind]) if kind in _FIELDS else None


def _dimensions(shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else [dimension.size for dimension in shape.dim]
