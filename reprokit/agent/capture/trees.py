"""Converts nested values to JSON and back: dictionaries, lists, tuples, numbers and texts; tensors stay outside.

Nothing is pickled: a value without a form here is replaced by its type's name. docs/format.md lists the nodes.
"""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable, Mapping

from ..core.attributes import MAX_NAME, ObjectFields, class_name, own_attributes, set_own_attribute
from ..core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    Node = dict[str, Any]

    class PartTaker(Protocol):
        """Selects samples of a batch while it is unpacked."""

        def rows(self, value: Any) -> Any:
            """Return the selected rows of a tensor or an array."""

        def items(self, nodes: list[Node]) -> list[Node]:
            """Return the selected items of a list."""


MAX_DEPTH = 32
MAX_NODES = 100_000
MAX_OBJECTS = 10_000  # of the user's classes


class BadTree(ValueError):
    """A node that pack() cannot have made."""


def pack(value: Any, put: Callable[[Any], Node | None], *, has_objects: bool = False) -> Node:
    """Return the node of a value; ``put`` returns the node of a framework's leaf, or None.

    ``has_objects``: pack objects of the user's classes, too, if such a leaf is among their attributes.
    """
    return _Packer(put, has_objects).node(value, 0)


def unpack(node: Node, get: Callable[[Node], Any], like: Any = None, cut: PartTaker | None = None) -> Any:
    """Return the value of a node; ``get`` returns the values of nodes that ``put`` made.

    ``like`` is a value of the same structure, if there is one: it provides classes, left-out values, and objects whose
    attributes are set. ``cut`` selects samples.
    """
    return _Unpacker(get, cut, is_given=like is not None).value(node, like, 0)


def child_nodes(node: Node) -> list[Node]:
    """Return the direct children of a node."""
    ((kind, content),) = node.items()
    if kind in ("list", "tuple"):
        return list(content)
    pairs = content if kind == "dict" else content[1] if kind in ("named", "object") else ()
    return [item for _, item in pairs]


def with_leaves(node: Any, put: Callable[[Any], Node | None]) -> Any:
    """Return a copy of a node in which each {"held": value} is replaced by the node that ``put`` returns."""
    if isinstance(node, list):
        return [with_leaves(part, put) for part in node]
    if not isinstance(node, dict):
        return node
    if "held" in node:
        return put(node["held"]) or _left_out(node["held"])
    return {key: with_leaves(part, put) for key, part in node.items()}


def leaf_contents(node: Any, kinds: tuple[str, ...] = ("tensor", "array")) -> list[str]:
    """Return the names of the tensors and arrays in a node, in order; or the contents of other kinds of nodes."""
    names: list[str] = []
    queue = [node]
    while queue:
        part = queue.pop()
        if isinstance(part, dict):
            if len(part) == 1:
                names += [part[kind] for kind in kinds if isinstance(part.get(kind), str)]
            queue.extend(reversed(list(part.values())))
        elif isinstance(part, list):
            queue.extend(reversed(part))
    return names


class _Packer:
    def __init__(self, put: Callable[[Any], Node | None], has_objects: bool) -> None:
        self._put = put
        self._count = 0
        self._leaves = self._objects = 0
        self._open: set[int] | None = set() if has_objects else None  # objects whose attributes are being packed

    def node(self, value: Any, depth: int) -> Node:
        self._count += 1
        if depth >= MAX_DEPTH or self._count > MAX_NODES:
            return _left_out(value)
        kind = type(value)
        if kind in _PACKERS:
            return _PACKERS[kind](value)
        if kind in (list, tuple):
            return {kind.__name__: [self.node(item, depth + 1) for item in value]}
        if kind is dict:
            return self._mapping(value, depth)
        leaf = self._put(value)
        self._leaves += leaf is not None
        return leaf or self._other(value, depth)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Node:
        return {"dict": [[self.node(key, depth + 1), self.node(value[key], depth + 1)] for key in value]}

    def _pairs(self, values: Mapping[str, Any], depth: int) -> list[Any]:
        return [[name, self.node(values[name], depth + 1)] for name in values]

    def _other(self, value: Any, depth: int) -> Node:
        """Return the node of a value of any other class."""
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        fields = _fields(value)
        if fields is not None:
            return {
                "named": [class_name(value), self._pairs({name: getattr(value, name, None) for name in fields}, depth)]
            }
        for plain in _SUBCLASSED:
            if isinstance(value, plain):
                return _PACKERS[plain](plain(value))
        if isinstance(value, (list, tuple)):
            base = "list" if isinstance(value, list) else "tuple"
            return {base: [self.node(item, depth + 1) for item in value]}
        return self._object(value, depth) or _left_out(value)

    def _object(self, value: Any, depth: int) -> Node | None:
        if self._open is None or id(value) in self._open or self._objects >= MAX_OBJECTS:
            return None
        self._objects += 1
        counts_before = self._count, self._leaves
        self._open.add(id(value))
        pairs = self._pairs(own_attributes(value), depth)
        self._open.discard(id(value))
        if self._leaves > counts_before[1]:
            return {"object": [class_name(value), pairs]}
        self._count = counts_before[0]  # an object that is left out does not count
        return None


_PACKERS: dict[Any, Callable[[Any], Node]] = {
    type(None): lambda value: {"none": True},
    bool: lambda value: {"bool": value},
    int: lambda value: {"integer": str(value) if -(10**300) < value < 10**300 else hex(value)},
    float: lambda value: {"float": value.hex()},
    complex: lambda value: {"complex": [value.real.hex(), value.imag.hex()]},
    str: lambda value: {"text": value},
    bytes: lambda value: {"bytes": value.hex()},
}
_SUBCLASSED: tuple[Any, ...] = (int, float, str, bytes)


def _left_out(value: Any) -> Node:
    return {"left_out": class_name(value)}


def _fields(value: Any) -> tuple[str, ...] | None:
    """Return the fields of a named tuple or a dataclass; None for other values."""
    kind = type(value)
    names = getattr(kind, "_fields", None) if issubclass(kind, tuple) else getattr(kind, "__dataclass_fields__", None)
    return None if names is None else tuple(names)


class _Unpacker:
    def __init__(self, get: Callable[[Node], Any], cut: PartTaker | None, *, is_given: bool) -> None:
        self._get = get
        self._selection = cut
        self._has_like = is_given  # the caller passed a value of the same structure
        self._count = 0

    def value(self, node: Any, like: Any, depth: int) -> Any:
        self._count += 1
        if depth >= MAX_DEPTH or self._count > MAX_NODES:
            raise BadTree("a value is nested too deeply or too large")
        if not isinstance(node, dict) or len(node) != 1:
            raise BadTree("a node of a value is no object with one key")
        ((kind, content),) = node.items()
        if kind in _DECODERS:
            return _from_text(kind, content)
        if kind in ("list", "tuple"):
            return self._sequence(kind, content, like, depth)
        if kind == "dict":
            return self._mapping(content, like, depth)
        if kind == "named":
            return self._named(content, like, depth)
        if kind == "object":
            return self._object(content, like, depth)
        leaf = like if kind == "left_out" else self._get(node)
        return leaf if self._selection is None else self._selection.rows(leaf)

    def _sequence(self, kind: str, content: Any, like: Any, depth: int) -> Any:
        likes = like if isinstance(like, (list, tuple)) else ()
        items = _list(content) if self._selection is None else self._selection.items(_list(content))
        values = [self.value(item, likes[i] if i < len(likes) else None, depth + 1) for i, item in enumerate(items)]
        return values if kind == "list" else tuple(values)

    def _mapping(self, content: Any, like: Any, depth: int) -> Any:
        result: dict[Any, Any] = {}
        for pair in _list(content):
            node, item = _list(pair, 2)
            key = self.value(node, None, depth + 1)
            try:
                like_item = like[key] if isinstance(like, Mapping) and key in like else None
                result[key] = self.value(item, like_item, depth + 1)
            except TypeError:
                raise BadTree("a key of a dictionary cannot be one") from None
        return result if type(like) is dict or not isinstance(like, Mapping) else _as_mapping(like, result)

    def _object(self, content: Any, like: Any, depth: int) -> Any:
        """Set the attributes of the script's own object: no class is looked up by name."""
        name, pairs = _list(content, 2)
        values = self._fields(pairs, own_attributes(like), depth)
        if not self._has_like:
            return ObjectFields(str(name), values)
        if class_name(like) != name:
            raise BadTree(f"the snapshot has a {str(name)[:MAX_NAME]}, where the script has a {class_name(like)}")
        for attribute, value in values.items():
            set_own_attribute(like, attribute, value)
        return like

    def _named(self, content: Any, like: Any, depth: int) -> Any:
        name, pairs = _list(content, 2)
        fields = _fields(like) if like is not None and class_name(like) == name else None
        values = self._fields(pairs, {field: getattr(like, field, None) for field in fields or ()}, depth)
        if fields is not None:
            return _as_named(like, fields, values)
        last = str(name).rpartition(".")[2]
        kind = namedtuple(last if last.isidentifier() else "Named", list(values), rename=True)  # type: ignore[misc]
        return kind(*values.values())

    def _fields(self, pairs: Any, likes: Mapping[str, Any], depth: int) -> dict[str, Any]:
        values = {}
        for field, node in (_list(pair, 2) for pair in _list(pairs)):
            if not isinstance(field, str):
                raise BadTree("a field's name is no text")
            values[field] = self.value(node, likes.get(field), depth + 1)
        return values


def _integer(text: str) -> int:
    if len(text) > 100_000:
        raise ValueError
    return int(text, 16) if "0x" in text else int(text)


_DECODERS: dict[str, Any] = {
    "none": (bool, lambda content: None),
    "bool": (bool, bool),
    "integer": (str, _integer),
    "float": (str, float.fromhex),
    "complex": (list, lambda content: complex(float.fromhex(content[0]), float.fromhex(content[1]))),
    "text": (str, str),
    "bytes": (str, bytes.fromhex),
}


def _from_text(kind: str, content: Any) -> Any:
    expected, convert = _DECODERS[kind]
    try:
        if isinstance(content, expected):
            return convert(content)
    except (ValueError, TypeError, IndexError, OverflowError):
        pass
    raise BadTree(f"a node says {kind}, and holds something else")


def _list(content: Any, length: int | None = None) -> list[Any]:
    if not isinstance(content, list) or (length is not None and len(content) != length):
        raise BadTree("a node holds no list of the length that it must have")
    return content


def _as_mapping(like: Any, items: dict[Any, Any]) -> Any:
    """Return a copy of a mapping of another class, with these items; a plain dict if that fails."""
    try:
        copied = copy.copy(like)
        for key in list(copied):
            del copied[key]
        for key, value in items.items():
            copied[key] = value
    except Exception as error:
        pass_on(error)
        return items
    return copied


def _as_named(like: Any, fields: tuple[str, ...], values: dict[str, Any]) -> Any:
    """Return a named tuple or dataclass of the class of ``like``."""
    if isinstance(like, tuple):
        kind: Any = type(like)
        return kind(*[values.get(name) for name in fields])
    copied = copy.copy(like)
    for name in fields:
        if name in values:
            object.__setattr__(copied, name, values[name])
    return copied
