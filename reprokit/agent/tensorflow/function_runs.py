"""Executes TensorFlow's functions operator by operator, following calls, branches and loops."""

from __future__ import annotations

from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, Protocol

    class NodeVisitor(Protocol):
        """Executes single operators, or calls of functions as a whole."""

        def follows(self, node: Any) -> bool:
            """Return whether to execute the functions called by a node operator by operator."""

        def result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any]:
            """Execute a node of the function `owner`; return its results."""


_COMPILED = "_XlaMustCompile"
_FIELDS = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_FOLLOWED = frozenset(["PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", *_BRANCHES])


class FunctionRun:
    """Executes functions by means of a visitor."""

    def __init__(self, visitor: NodeVisitor) -> None:
        self._visitor = visitor
        self._plans: dict[str, FunctionPlan] = {}

    def plan(self, name: str) -> FunctionPlan:
        """Return the plan of a function, created on first use."""
        plan = self._plans.get(name)
        if plan is None:
            definition = private_api.module("context").context().get_function_def(name)
            plan = self._plans[name] = FunctionPlan(definition)
        return plan

    def run(self, name: str, owner: str, arguments: Sequence[Any]) -> list[Any]:
        """Execute a function; return its results."""
        plan = self.plan(name)
        values = dict(zip(plan.arguments, arguments))
        for node, texts, definition, unused in plan.nodes:  # in topological order
            result = self._result(owner, node, definition, [values[text] for text in texts])
            values.update(_values_by_name(node, definition, result))
            for text in unused:
                values.pop(text, None)
        return [values[text] for text in plan.returns]

    def _result(self, owner: str, node: Any, definition: Any, inputs: list[Any]) -> list[Any]:
        if node.op not in _FOLLOWED or not self._visitor.follows(node):
            return self._visitor.result(owner, node, definition, inputs)
        functions = list(function_names(node))
        if node.op.endswith("PartitionedCall"):
            return self.run(functions[0], functions[0], inputs)
        if node.op.endswith("While"):
            return self._loop(node.attr["cond"].func.name, node.attr["body"].func.name, inputs)
        if node.op.endswith("If"):
            functions = [node.attr[branch].func.name for branch in ("else_branch", "then_branch")]
        selector, arguments = inputs[0], inputs[1:]
        number = bool(selector.numpy()) if node.op.endswith("If") else int(selector)
        function = functions[number if 0 <= number < len(functions) else -1]
        return self.run(function, function, arguments)

    def _loop(self, condition: str, body: str, values: list[Any]) -> list[Any]:
        while self.run(condition, condition, values)[0].numpy():
            values = self.run(body, body, values)
        return values


class FunctionPlan:
    """The nodes of a function in order, each with the names of its inputs, and of those not used after it.

    As in TensorFlow these are only the nodes that have side effects, or are needed for the results.
    """

    def __init__(self, definition: Any) -> None:
        self.arguments = [argument.name for argument in definition.signature.input_arg]
        self.returns = [definition.ret[output.name] for output in definition.signature.output_arg]
        self.is_compiled = must_be_compiled(definition)
        nodes = _needed(definition)
        inputs = [[text for text in node.input if text[:1] != "^"] for node in nodes]
        last = {text: node.name for node, texts in zip(nodes, inputs) for text in texts}
        last.update(dict.fromkeys(self.returns, ""))
        self.nodes = [
            (node, texts, private_api.definition(node.op), [text for text in set(texts) if last[text] == node.name])
            for node, texts in zip(nodes, inputs)
        ]


def must_be_compiled(definition: Any) -> bool:
    """Return whether a function is marked to be compiled by XLA."""
    return bool(_COMPILED in definition.attr and definition.attr[_COMPILED].b)


def _needed(definition: Any) -> list[Any]:
    """Return the needed nodes of a function in topological order, otherwise in the order of creation."""
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
    """Yield the names of the functions in the attributes of a node."""
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            yield attribute.func.name
        elif attribute.HasField("list"):
            for function in attribute.list.func:
                yield function.name


def _values_by_name(node: Any, definition: Any, result: list[Any]) -> dict[str, Any]:
    """Return the results of a node by their names in the function definition, "node:output:number"."""
    counts = [(argument.name, _count(argument, attributes_of(node, definition))) for argument in definition.output_arg]
    names = [f"{node.name}:{output}:{number}" for output, count in counts for number in range(count)]
    return dict(zip(names, result))


def _count(argument: Any, attributes: dict[str, Any]) -> int:
    if argument.number_attr:
        return int(attributes[argument.number_attr])
    return len(attributes[argument.type_list_attr]) if argument.type_list_attr else 1


def count_outputs(definition: Any, attributes: dict[str, Any]) -> int:
    """Return the number of outputs of an operator with these attributes."""
    return sum(_count(argument, attributes) for argument in definition.output_arg)


def attributes_of(node: Any, definition: Any) -> dict[str, Any]:
    """Return the attributes of a node by name; tensor attributes are None."""
    kinds = {attribute.name: attribute.type for attribute in definition.attr}
    return {name: _attribute_value(kinds[name], value) for name, value in node.attr.items() if name in kinds}


def flat(attributes: Mapping[str, Any]) -> list[Any]:
    """Return attributes as a list of alternating names and values, as TensorFlow's C API expects."""
    return [part for name, value in attributes.items() if value is not None for part in (name, value)]


def _attribute_value(kind: str, value: Any) -> Any:
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
