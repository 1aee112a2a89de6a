"""Reads the variables that a script keeps itself, and sets them: of its modules, running functions and objects.

A variable becomes a tree of nodes as in capture/trees.py, whose leaves have the names that the script gives them. Only
values of the script's own code are read: plain values, tensors and arrays, in containers, objects and closures.
"""

from __future__ import annotations

from array import array
from collections import deque
from types import FunctionType, GeneratorType

from ..capture import trees
from ..capture.variables import set_variables
from ..core.attributes import class_name, set_own_attribute
from ..core.live_objects import instances
from ..core.signal_errors import pass_on
from ..core.state_entries import generator_state, put_generator
from .library_values import QUEUES, made_of, moved_to, plain_of, position_of, set_field_of_library
from .script_scopes import VariableScope, fields_of, scopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping
    from types import FrameType
    from typing import Any, Protocol

    from ..capture.trees import Node

    class TensorAccess(Protocol):
        """Reads and writes the tensors and arrays of a framework."""

        def is_left_out(self, value: Any) -> bool:
            """Return whether a tensor belongs to another part of the state, as a parameter does, or is unreadable."""

        def size(self, value: Any) -> int:
            """Return how many bytes a tensor has."""

        def leaf(self, value: Any) -> Node | None:
            """Return a node with the tensor or array itself in it; None for other values."""

        def node(self, value: Any) -> Node:
            """Return the node of a tensor, with what is needed to make one like it."""

        def text(self, node: Node) -> str:
            """Return the number in a tensor of one element; the digest of others."""

        def restore(self, node: Node, own: Any) -> Any:
            """Return a saved tensor or plain value: the script's own tensor where that can be overwritten."""


MAX_DEPTH = 6
MAX_VALUES = 5000
MAX_ITEMS = 1000  # of a container whose values are not all plain
MAX_PLAIN = 100_000  # items of a container of plain values
MAX_TEXT = 1000
MAX_BYTES = 256 << 20
MAX_SHOWN = 30  # characters of a number
BOUNDED = "further-variables"  # the name of what was left out for these bounds
MISSING = object()
_PLAIN_TYPES = frozenset([type(None), bool, int, float, complex, str])
_PLAIN_NODES = frozenset(["none", "bool", "integer", "float", "complex", "text"])
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "numbers": array}


def _set_field(owner: Any, name: str, value: Any) -> None:
    frame = owner.gi_frame if isinstance(owner, GeneratorType) else None
    if frame is not None:
        set_variables(frame, {name: value})
    elif isinstance(owner, FunctionType) and name in owner.__code__.co_freevars:
        (owner.__closure__ or ())[owner.__code__.co_freevars.index(name)].cell_contents = value
    elif isinstance(owner, type):
        type.__setattr__(owner, name, value)
    elif not set_field_of_library(owner, name, value):
        set_own_attribute(owner, name, value)


class VariableReader:
    """Makes nodes of the script's variables, each object once."""

    def __init__(
        self, access: TensorAccess, other_parts: Iterable[Any], search: Callable[..., list[Any]] = instances
    ) -> None:
        self._access, self._search = access, search
        self._seen: dict[int, Any] = {id(part): part for part in other_parts}  # keeps them, so that ids stay unique
        self._values = self._bytes = 0
        self.is_bounded = self._has_queues = False

    def read(self, frame: FrameType | None) -> list[list[Any]]:
        """Return head, tail and node of each variable."""
        rows = []
        for scope in scopes(frame, self._search):
            for name, head, tail in scope.rows():
                try:
                    node = self._node(scope.variables[name], 0)
                except Exception as error:  # of an object that is not what it seems
                    pass_on(error)
                    continue
                if node is not None:
                    rows.append([head, tail, node])
        return rows

    def texts(self, frame: FrameType | None, digest: Callable[[str], str]) -> dict[str, str]:
        """Return the values of variables by name: numbers as they are, digests of others."""
        self._has_queues = True
        named: dict[str, str] = {}
        for head, tail, root in self.read(frame):
            for name, node in leaves(head, tail, root):
                if "left_out" not in node:
                    named.setdefault(name, _text(node, self._access, digest))
        return {**named, BOUNDED: ""} if self.is_bounded else named

    def differing(
        self, frame: FrameType | None, digest: Callable[[str], str], resumed: Mapping[str, str]
    ) -> list[list[Any]]:
        """Return what read does, without values that the resumed script has too: none needs them, some are secrets."""

        def is_equal(name: str, node: Node) -> bool:
            return name in resumed and resumed[name] == _text(node, self._access, digest)

        self._has_queues = True
        rows = [[head, tail, _others(head, tail, node, is_equal)] for head, tail, node in self.read(frame)]
        return [row for row in rows if any("left_out" not in node for _, node in leaves(*row))]

    def _node(self, value: Any, depth: int) -> Node | None:
        kind = type(value)
        if kind in _PLAIN_TYPES:
            return self._counted(None if kind is str and len(value) > MAX_TEXT else trees.pack(value, lambda _: None))
        plain = plain_of(value)
        if plain is not None:
            return self._counted({"plain": plain})
        if id(value) in self._seen:
            return None
        self._seen[id(value)] = value
        if self._access.leaf(value) is not None:
            return self._tensor(value)
        state = generator_state(value)
        if state is not None:
            return self._counted({"state": trees.pack(state, self._access.leaf)})
        position = position_of(value)
        if position is not None:
            return self._counted({"position": position})
        return self._branch(value, depth)

    def _counted(self, node: Node | None) -> Node | None:
        self._values += node is not None
        if self._values <= MAX_VALUES:
            return node
        self.is_bounded = True
        return None

    def _tensor(self, value: Any) -> Node | None:
        if self._access.is_left_out(value):
            return None
        size = self._access.size(value)
        if self._bytes + size > MAX_BYTES:
            self.is_bounded = True
            return None
        self._bytes += size
        return self._counted(self._access.node(value))

    def _branch(self, value: Any, depth: int) -> Node | None:
        """Return the node of a container or object; None for those of libraries."""
        if isinstance(value, dict):
            return self._mapping(dict(dict.items(value)), depth)
        if isinstance(value, (set, frozenset)):
            items = sorted(value, key=repr) if self._is_plain(value) else ()
            node: Node = {"set": [trees.pack(item, lambda _: None) for item in items]}
            return self._counted(node) if len(items) == len(value) else None
        for name, kind in _SEQUENCES.items():
            if isinstance(value, kind):
                return self._sequence(name, list(kind.__iter__(value)), depth)
        if class_name(value) in QUEUES and not self._has_queues:  # of a keyframe: threads may wait for what is in it
            return None
        fields = fields_of(value)
        if not fields or not self._has_room(len(fields), depth):
            return None
        pairs = self._pairs(fields, depth)
        return {"object": [class_name(value), pairs]} if pairs else None

    def _is_plain(self, items: Iterable[Any]) -> bool:
        return {type(item) for item in items} <= _PLAIN_TYPES

    def _has_room(self, count: int, depth: int, *, is_plain: bool = False) -> bool:
        has_room = depth < MAX_DEPTH and count <= (MAX_PLAIN if is_plain else MAX_ITEMS)
        self.is_bounded = self.is_bounded or not has_room
        return has_room

    def _pairs(self, values: Mapping[Any, Any], depth: int) -> list[Any]:
        nodes = [[name, self._node(value, depth + 1)] for name, value in list(values.items())]
        return [pair for pair in nodes if pair[1] is not None]

    def _mapping(self, value: dict[Any, Any], depth: int) -> Node | None:
        if not self._has_room(len(value), depth):
            return None
        if not all(self._is_plain(key if type(key) is tuple else (key,)) for key in value):
            # Keys such as parameters have no names: by position.
            return self._sequence("values", list(value.values()), depth)
        return {"dict": [[trees.pack(key, lambda _: None), self._child(value[key], depth)] for key in list(value)]}

    def _sequence(self, kind: str, items: list[Any], depth: int) -> Node | None:
        is_plain = self._is_plain(items)
        if not self._has_room(len(items), depth, is_plain=is_plain):
            return None
        if is_plain:
            return self._counted({kind: [trees.pack(item, lambda _: None) for item in items]})
        return {kind: [self._child(item, depth) for item in items]}

    def _child(self, value: Any, depth: int) -> Node:
        return self._node(value, depth + 1) or {"left_out": class_name(value)}


def leaves(path: str, tail: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the values in a node with their names."""
    children = _children(node)
    if children is None:
        yield path + tail, node
    for label, child in children or ():
        yield from leaves(path + label, tail, child)


def _children(node: Node) -> list[tuple[str, Node]] | None:
    """Return the children of a node, with what their names add; None if it has no parts with names."""
    ((kind, content),) = node.items()
    if kind == "dict" and content:
        return [(f"[{trees.unpack(key, lambda _: None)!r}]", child) for key, child in content]
    if kind == "object":
        return [(f".{name}", child) for name, child in content[1]]
    if kind in (*_SEQUENCES, "values") and not all(set(child) <= _PLAIN_NODES for child in content):
        return [(f"[{number}]", child) for number, child in enumerate(content)]
    return None


def _others(path: str, tail: str, node: Node, is_equal: Callable[[str, Node], bool]) -> Node:
    """Return a node with equal values left out."""
    children = _children(node)
    ((kind, content),) = node.items()
    if children is None:
        return {"left_out": ""} if kind != "left_out" and is_equal(path + tail, node) else node
    others = [_others(path + label, tail, child, is_equal) for label, child in children]
    if kind == "dict":
        return {"dict": [[key, other] for (key, _), other in zip(content, others)]}
    if kind == "object":
        return {"object": [content[0], [[name, other] for (name, _), other in zip(content[1], others)]]}
    return {kind: others}


def _text(node: Node, access: TensorAccess, digest: Callable[[str], str]) -> str:
    ((kind, content),) = node.items()
    if kind in _PLAIN_NODES:
        value = trees.unpack(node, lambda _: None)
        return repr(value) if kind != "text" and len(repr(value)) <= MAX_SHOWN else "#" + digest(repr(value))
    if kind == "position":
        return repr(content[0])
    if kind == "plain":
        return str(content[1]) if len(str(content[1])) <= MAX_SHOWN else "#" + digest(str(content[1]))
    if kind in (*_SEQUENCES, "values", "set", "state", "dict"):
        return "#" + digest(repr(trees.with_leaves(node, lambda leaf: {"text": access.text({"held": leaf})})))
    return access.text(node)


class VariableSetter:
    """Sets variables of the script to saved ones. Containers and objects are changed in place, as others share them."""

    def __init__(self, access: TensorAccess, names: Container[str]) -> None:
        self._access, self._names = access, names
        self._replaced: dict[int, Any] = {}  # new tensors by the ids of own ones, which a script may keep twice
        self._tail = ""

    def restore(self, rows: Iterable[list[Any]], frame: FrameType | None) -> None:
        """Set the variables among these that have one of the names."""
        own_scopes = list(scopes(frame))
        places: dict[tuple[str, str], tuple[VariableScope, str]] = {}
        for scope in own_scopes:
            for name, head, tail in scope.rows():
                places.setdefault((head, tail), (scope, name))
        for head, self._tail, node in rows:
            new_places = ((scope, scope.name_of(head, self._tail)) for scope in own_scopes)
            place = places.get((head, self._tail)) or next((pair for pair in new_places if pair[1]), None)
            if place is not None:
                scope, name = place
                own = scope.variables.get(name, MISSING)
                value = self._value(node, own, head)
                if value is not own and value is not MISSING and scope.assign is not None:
                    scope.assign(name, value)

    def _value(self, node: Node, own: Any, path: str) -> Any:
        """Return what a variable is to be: its own value, unless something in it has one of the names."""
        ((kind, content),) = node.items()
        if kind == "left_out" or not any(name in self._names for name, _ in leaves(path, self._tail, node)):
            return self._replaced.get(id(own), own)
        if kind == "object":
            return self._object(content, own, path)
        if kind == "dict":
            return self._mapping(content, own, path)
        if kind in (*_SEQUENCES, "values", "set"):
            return self._items(kind, content, own, path)
        if kind == "state":
            if generator_state(own) is not None:
                put_generator(own, self._access.restore(content, None))
            return own
        if kind == "plain":
            return made_of(content, own)
        if kind == "position":
            return moved_to(own, content)
        new = self._access.restore(node, own)
        if new is not own and self._access.leaf(own) is not None:
            self._replaced[id(own)] = new
        return new

    def _object(self, content: Any, own: Any, path: str) -> Any:
        """Set the fields of the script's own object of this class."""
        if class_name(own) == content[0]:
            fields = fields_of(own) or {}
            for name, child in content[1]:
                own_field = fields.get(name, MISSING)
                value = self._value(child, own_field, f"{path}.{name}")
                if value is not own_field and value is not MISSING:
                    _set_field(own, name, value)
        return own

    def _mapping(self, content: Any, own: Any, path: str) -> Any:
        own_items = dict(own) if isinstance(own, dict) else {}
        items = {}
        for key_node, child in content:
            key = trees.unpack(key_node, lambda _: None)
            items[key] = self._value(child, own_items.get(key, MISSING), f"{path}[{key!r}]")
        items = {key: item for key, item in items.items() if item is not MISSING}
        if not isinstance(own, dict):
            return items
        dict.clear(own)
        dict.update(own, items)
        return own

    def _items(self, kind: str, content: Any, own: Any, path: str) -> Any:
        """Return a container without keys, filled with the saved items; the own one if an item cannot be made."""
        is_own = isinstance(own, (*_SEQUENCES.values(), dict, set))
        own_items = list(own.values() if isinstance(own, dict) else own) if is_own else []
        own_items += [MISSING] * (len(content) - len(own_items))
        named = [(f"{path}[{number}]", child) for number, child in enumerate(content)]
        values = [
            self._access.restore(child, MISSING) if set(child) <= _PLAIN_NODES else self._value(child, own_item, name)
            for (name, child), own_item in zip(named, own_items)
        ]
        if any(value is MISSING for value in values):
            return own
        if kind == "values":
            if isinstance(own, dict) and len(own) == len(values):
                dict.update(own, zip(list(own), values))
            return own
        return _refill(kind, own, values)


def _refill(kind: str, own: Any, values: list[Any]) -> Any:
    """Return the own container with these values, or a new one where it has another type or cannot be changed."""
    if kind == "list" and isinstance(own, list):
        list.__setitem__(own, slice(None), values)
    elif kind == "set" and isinstance(own, set):
        set.clear(own)
        set.update(own, values)
    elif kind == "deque":  # a new one would lack the greatest length
        if isinstance(own, deque):
            deque.clear(own)
            deque.extend(own, values)
    elif kind == "numbers":  # only the own one has the type of its numbers
        if isinstance(own, array):
            own[:] = array(own.typecode, values)
    elif kind == "tuple":
        return type(own)._make(values) if hasattr(own, "_make") else tuple(values)
    else:
        return set(values) if kind == "set" else values
    return own
