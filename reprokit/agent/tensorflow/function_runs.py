"""Executes TensorFlow's functions operator by operator: calls, branches and loops are followed here."""

from __future__ import annotations

from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, Protocol

    class NodeVisitor(Protocol):
        """Who executes what calls no function, or a function as a whole."""

        def follows(self, node: Any) -> bool:
            """Return whether the functions of a node that calls some are to be executed operator by operator."""

        def result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any] | MissingValue:
            """Return what a node of a function of this name returns, or why it does not."""


_COMPILED = "_XlaMustCompile"
_FIELDS = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_FOLLOWED = frozenset(["PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", *_BRANCHES])


class MissingValue:
    """Stands for a tensor that cannot be had."""

    def __init__(self, why: str) -> None:
        self.why = why


_LATER = MissingValue("its inputs come out of an operator that is executed later, in a loop")


class FunctionRun:
    """Executes functions for a visitor."""

    def __init__(self, visitor: NodeVisitor, *, only_needed: bool = False) -> None:
        self._visitor = visitor
        self._only_needed = only_needed  # as TensorFlow does it: what has effects, and what is returned
        self._known: dict[str, FunctionPlan] = {}

    def plan(self, name: str) -> FunctionPlan:
        """Return what is executed of a function."""
        found = self._known.get(name)
        if found is None:
            definition = private_api.module("context").context().get_function_def(name)
            found = self._known[name] = FunctionPlan(definition, only_needed=self._only_needed)
        return found

    def run(self, name: str, owner: str, arguments: Sequence[Any]) -> list[Any]:
        """Return what a function returns."""
        plan = self.plan(name)
        values = dict(zip(plan.arguments, arguments))
        for node, texts, definition, done in plan.nodes:  # each after those that it takes from
            result = self._result(owner, node, definition, [_value(values, text) for text in texts])
            values.update(_named(node, definition, result))
            for text in done:
                values.pop(text, None)
        return [_value(values, text) for text in plan.returns]

    def _result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any] | MissingValue:
        if node.op not in _FOLLOWED or not self._visitor.follows(node):
            return self._visitor.result(owner, node, definition, inputs)
        functions = list(function_names(node))
        if node.op.endswith("PartitionedCall"):
            return self.run(functions[0], functions[0], inputs)
        if node.op.endswith("While"):
            return self._loop(node.attr["cond"].func.name, node.attr["body"].func.name, inputs)
        if node.op.endswith("If"):
            functions = [node.attr[branch].func.name for branch in ("else_branch", "then_branch")]
        chosen, arguments = inputs[0], inputs[1:]
        if isinstance(chosen, MissingValue):
            for function in functions:
                self.run(function, function, [chosen] * len(arguments))
            return chosen
        number = bool(chosen.numpy()) if node.op.endswith("If") else int(chosen)
        function = functions[number if 0 <= number < len(functions) else -1]
        return self.run(function, function, arguments)

    def _loop(self, condition: str, body: str, values: list[Any]) -> list[Any] | MissingValue:
        while True:
            (goes_on,) = self.run(condition, condition, values)
            if isinstance(goes_on, MissingValue):
                self.run(body, body, [goes_on] * len(values))
                return goes_on
            if not goes_on.numpy():
                return values
            values = self.run(body, body, values)


class FunctionPlan:
    """The nodes of a function, in order: each with the names of its inputs, and of those that nobody needs after it."""

    def __init__(self, definition: Any, *, only_needed: bool) -> None:
        self.arguments = [argument.name for argument in definition.signature.input_arg]
        self.returns = [definition.ret[output.name] for output in definition.signature.output_arg]
        self.is_compiled = must_be_compiled(definition)
        nodes = list(definition.node_def)
        if only_needed:
            nodes = _needed(definition)
        inputs = [[text for text in node.input if text[:1] != "^"] for node in nodes]
        last = {text: node.name for node, texts in zip(nodes, inputs) for text in texts}
        last.update(dict.fromkeys(self.returns, ""))
        self.nodes = [
            (node, texts, private_api.definition(node.op), [text for text in set(texts) if last[text] == node.name])
            for node, texts in zip(nodes, inputs)
        ]


def must_be_compiled(definition: Any) -> bool:
    """Return whether XLA compiles a function as a whole."""
    return bool(_COMPILED in definition.attr and definition.attr[_COMPILED].b)


def _needed(definition: Any) -> list[Any]:
    """Return the nodes that a function executes, each behind those that it waits for, else in the order of making."""
    nodes = {node.name: node for node in definition.node_def}
    waiting = [*definition.ret.values(), *definition.control_ret.values()]
    needed: set[str] = set()
    while waiting:
        name = _node_of(waiting.pop())
        if name in nodes and name not in needed:
            needed.add(name)
            waiting += nodes[name].input
    ordered: dict[str, Any] = {}
    waiting = [name for name in reversed(nodes) if name in needed]
    while waiting:
        before = [name for name in map(_node_of, nodes[waiting[-1]].input) if name in nodes and name not in ordered]
        if before:
            waiting += before
        else:
            name = waiting.pop()
            ordered[name] = nodes[name]
    return list(ordered.values())


def _node_of(text: str) -> str:
    return text.lstrip("^").partition(":")[0]


def function_names(node: Any) -> Iterator[str]:
    """Yield the functions that a node names in its attributes."""
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            yield attribute.func.name
        elif attribute.HasField("list"):
            for function in attribute.list.func:
                yield function.name


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
    """Return a node's attributes by name, None in the place of tensors."""
    kinds = {attribute.name: attribute.type for attribute in definition.attr}
    return {name: _plain(kinds[name], value) for name, value in node.attr.items() if name in kinds}


def flat(attributes: Mapping[str, Any]) -> list[Any]:
    """Return names and values by turns, as TensorFlow's door takes them."""
    return [part for name, value in attributes.items() if value is not None for part in (name, value)]


def _plain(kind: str, value: Any) -> Any:
    if kind == "shape":
        return _dimensions(value.shape)
    if kind == "func":
        return value.func.name
    if kind == "list(func)":
        return [function.name for function in value.list.func]
    if kind == "list(shape)":
        return [_dimensions(shape) for shape in value.list.shape]
    if kind.startswith("list("):
        field = _FIELDS.get(kind[5:-1])
        return None if field is None else list(getattr(value.list, field))
    return getattr(value, _FIELDS[kind]) if kind in _FIELDS else None


def _dimensions(shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else [dimension.size for dimension in shape.dim]
