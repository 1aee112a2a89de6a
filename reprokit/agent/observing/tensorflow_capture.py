"""Finds the inputs that operators have inside of a TensorFlow function, without executing what the function does.

A function's definition is copied with the wanted tensors as its only results. Of what it does only that is left which
these need as data: nothing is assigned, printed, enqueued, or taken from an iterator, and random operators that take
their seed from the entropy of the machine get one of their own kernels. Functions that it calls are copied likewise.
"""

from __future__ import annotations

import itertools

from ..tensorflow import private_api
from . import tensorflow_graphs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

# Operators that TensorFlow counts as stateful, but which change nothing that anybody else sees.
_HARMLESS = frozenset(
    "AnonymousIterator HashTableV2 LookupTableFindV2 LookupTableSizeV2 MultinomialV2 Multinomial OptionalFromValue"
    " ParameterizedTruncatedNormal PartitionedCall RandomGamma RandomPoissonV2 RandomShuffle RandomStandardNormal"
    " RandomUniform RandomUniformInt ReadVariableOp ResourceGather ResourceGatherNd StatefulPartitionedCall"
    " TruncatedNormal VarHandleOp VarIsInitializedOp VariableShape If While Case IteratorGetNext".split()
)
_NEXT = "IteratorGetNext"
_NUMBERS = itertools.count()


class NotCapturedError(Exception):
    """Why inputs cannot be had."""


class Node:
    """A node of a definition, with what is known of its operator."""

    def __init__(self, proto: Any, operator: Any) -> None:
        self.proto = proto
        self.operator = operator
        self.inputs = [name for name in proto.input if name[:1] != "^"]

    def output_type(self, output: str, index: int) -> int:
        """The type of one of its tensors."""
        for argument in self.operator.output_arg:
            if argument.name == output:
                return _type_of(argument, self.proto, index)
        raise NotCapturedError(f"{self.proto.op} has no output {output}")


def _node_of(name: str) -> str:
    return name.split(":", 1)[0]


def _type_of(argument: Any, proto: Any, index: int) -> int:
    if argument.type_list_attr:
        return int(proto.attr[argument.type_list_attr].list.type[index])
    if argument.type_attr:
        return int(proto.attr[argument.type_attr].type)
    return int(argument.type)


class Definitions:
    """Copies of functions' definitions, under names of their own in TensorFlow's context."""

    def __init__(self, context: Any, execute: Callable[..., Any]) -> None:
        self._context = context
        self._execute = execute
        self._copies: dict[str, str] = {}
        self._troubles: dict[str, dict[str, str]] = {}
        self._added: list[str] = []

    def of(self, name: str) -> Any:
        """The definition of a function."""
        return self._context.get_function_def(name)

    def nodes(self, definition: Any) -> dict[str, Node]:
        """Its nodes by name."""
        return {proto.name: Node(proto, private_api.definition(proto.op)) for proto in definition.node_def}

    def troubles(self, name: str) -> dict[str, str]:
        """The nodes of a function whose results cannot be had without a change to anything, and why."""
        if name not in self._troubles:
            found: dict[str, str] = {}
            for place, node in self.nodes(self.of(name)).items():  # each after those that it takes from
                inherited = [found[part] for part in map(_node_of, node.inputs) if part in found]
                reason = inherited[0] if inherited else self._trouble(node)
                if reason:
                    found[place] = reason
            self._troubles[name] = found
        return self._troubles[name]

    def _trouble(self, node: Node) -> str:
        operator = node.proto.op
        if node.operator is None or (node.operator.is_stateful and operator not in _HARMLESS):
            return f"its inputs come out of {operator}, which has effects"
        if operator == _NEXT and ":" in node.inputs[0]:
            return "its inputs come out of an iterator that the function makes itself"
        for function in tensorflow_graphs.function_names(node.proto):
            inner = self.troubles(function)
            for name in map(_node_of, self.of(function).ret.values()):
                if name in inner:
                    return inner[name]
        return ""

    def iterators(self, name: str) -> list[tuple[int, Any]]:
        """Where a function takes from iterators: the place of the argument (-1: in a loop or branch) and the node."""
        definition = self.of(name)
        places = {argument.name: number for number, argument in enumerate(definition.signature.input_arg)}
        found: list[tuple[int, Any]] = []
        for node in self.nodes(definition).values():
            if node.proto.op == _NEXT and node.inputs[0] in places:
                found.append((places[node.inputs[0]], node.proto))
            elif calls_functions(node):
                found += self._inner_iterators(node, places)
        return found

    def _inner_iterators(self, node: Node, places: dict[str, int]) -> Iterator[tuple[int, Any]]:
        is_plain = node.proto.op.endswith("PartitionedCall")
        for function in tensorflow_graphs.function_names(node.proto):
            for place, proto in self.iterators(function):
                given = node.inputs[place] if is_plain and place >= 0 else ""
                yield places.get(given, -1), proto

    def called(self, node: Node) -> set[str]:
        """The functions that a node calls, and those that these call."""
        found: set[str] = set()
        waiting = list(tensorflow_graphs.function_names(node.proto))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                for inner in self.of(name).node_def:
                    waiting += tensorflow_graphs.function_names(inner)
        return found

    def values(self, name: str, arguments: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
        """The tensors of these names ("node:output:0", or an argument's) that a function computes of its arguments."""
        if not wanted:
            return []
        copy = self._copy(self.of(name), list(wanted))
        return list(self._execute(copy, arguments, self._options(), len(wanted)))

    def _options(self) -> list[Any]:
        options = self._context.function_call_options
        if hasattr(options, "as_attrs"):
            return [part for pair in options.as_attrs().items() for part in pair]
        return ["executor_type", options.executor_type or "", "config_proto", options.config_proto_serialized]

    def _copy(self, definition: Any, wanted: list[str]) -> str:
        """Add a definition that gives these tensors and does nothing else."""
        nodes = self.nodes(definition)
        copy = type(definition)()
        copy.signature.name = f"reprokit_{next(_NUMBERS)}"
        copy.signature.input_arg.extend(definition.signature.input_arg)
        for place, attributes in definition.arg_attr.items():
            copy.arg_attr[place].CopyFrom(attributes)
        for place, number in definition.resource_arg_unique_id.items():
            copy.resource_arg_unique_id[place] = number
        kinds = {argument.name: argument.type for argument in definition.signature.input_arg}
        for number, name in enumerate(wanted):
            output = copy.signature.output_arg.add()
            output.name = f"wanted_{number}"
            output.type = kinds[name] if name in kinds else self.type_of(nodes, name)
            copy.ret[output.name] = name
        for node in _needed(nodes, wanted):
            self._add_node(copy, node)
        self._context.add_function_def(copy)
        self._added.append(copy.signature.name)
        return str(copy.signature.name)

    def type_of(self, nodes: dict[str, Node], name: str) -> int:
        """The type of a tensor of a definition."""
        node, output, index = name.rsplit(":", 2)
        return nodes[node].output_type(output, int(index))

    def _add_node(self, copy: Any, node: Node) -> None:
        reason = self._trouble(node)
        if reason:
            raise NotCapturedError(reason)
        proto = copy.node_def.add()
        proto.CopyFrom(node.proto)
        del proto.input[:]
        proto.input.extend(node.inputs)
        for attribute in proto.attr.values():
            for function in [attribute.func] if attribute.HasField("func") else attribute.list.func:
                function.name = self._harmless(function.name)

    def _harmless(self, name: str) -> str:
        """A copy of a function that gives what it gives and does nothing else."""
        if name not in self._copies:
            definition = self.of(name)
            wanted = [definition.ret[output.name] for output in definition.signature.output_arg]
            self._copies[name] = self._copy(definition, wanted)
        return self._copies[name]

    def forget(self) -> None:
        """Take the copies out of the context."""
        for name in reversed(self._added):
            self._context.remove_function(name)
        self._added.clear()
        self._copies.clear()


def _needed(nodes: dict[str, Node], wanted: Sequence[str]) -> list[Node]:
    """The nodes whose data these tensors need, in the definition's order."""
    seen: set[str] = set()
    waiting = [_node_of(name) for name in wanted]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        waiting += map(_node_of, nodes[name].inputs)
    return [node for name, node in nodes.items() if name in seen]


class Inner:
    """A function that another calls, with the arguments that it is given."""

    def __init__(self, name: str, arguments: list[Any]) -> None:
        self.name = name
        self.arguments = arguments


def inner_calls(node: Node, inputs: list[Any]) -> list[Inner]:
    """What a node calls: the branch that is taken, or a loop's body as it is called first."""
    operator = node.proto.op
    if operator.endswith("PartitionedCall"):
        return [Inner(node.proto.attr["f"].func.name, inputs)]
    if operator in ("If", "StatelessIf"):
        branch = "then_branch" if _truth(inputs[0]) else "else_branch"
        return [Inner(node.proto.attr[branch].func.name, inputs[1:])]
    if operator in ("While", "StatelessWhile"):
        return [Inner(node.proto.attr[name].func.name, inputs) for name in ("cond", "body")]
    if operator in ("Case", "StatelessCase"):
        branches = node.proto.attr["branches"].list.func
        return [Inner(branches[min(max(int(inputs[0]), 0), len(branches) - 1)].name, inputs[1:])]
    return []


def _truth(value: Any) -> bool:
    return bool(value.numpy())


def calls_functions(node: Node) -> bool:
    """Whether a node is a call, a branch or a loop."""
    return not tensorflow_graphs.computes(node.proto.op) and any(tensorflow_graphs.function_names(node.proto))
