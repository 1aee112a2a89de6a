"""The content of a pickle as inert nodes instead of objects: names stay text, and calls are never executed.

None, booleans, numbers and short strings represent themselves, lists and tuples are Python's own. Everything else is a
node, one for each object of the pickle. Nodes are never hashed or compared by content.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from reprokit.diff.elements import Source

ATOM = 4096  # characters or bytes of the longest string that is not a node


class OldString(bytes):
    """A `str` of Python 2, which may be text or bytes."""


@dataclass(frozen=True)
class GlobalName:
    """The name of a class or function, which is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        if not all(part.isidentifier() for part in f"{self.module}.{self.name}".split(".")):
            return f"{self.module!r}.{self.name!r}"
        return f"{self.module}{':' if '.' in self.name else '.'}{self.name}"


@dataclass(eq=False, slots=True)
class PickledSet:
    """A set or frozenset: its elements in the order of addition."""

    kind: str
    items: list[Item]

    def add(self, item: Item) -> None:
        self.items.append(item)


@dataclass(eq=False, slots=True)
class PickledDict:
    """A dict: its items in the order in which they were set, duplicate keys included."""

    items: list[tuple[Item, Item]]

    def __setitem__(self, key: Item, value: Item) -> None:
        self.items.append((key, value))


@dataclass(eq=False, slots=True)
class LongString:
    """Long bytes, a bytearray, a long string or number: the source of its bytes."""

    kind: str  # bytes, bytearray, str, string (of Python 2), int
    source: Source
    as_bytes: Any = None  # the cached conversion to Latin-1


class Creation(Enum):
    """How an object is created."""

    CALL = "call"  # function(*arguments)
    NEW = "new"  # class.__new__(class, *arguments)
    INSTANCE = "instance"  # of a class of Python 2
    PERSISTENT = "persistent"  # by a persistent id, resolved by the reader
    EXTENSION = "extension"  # a number of copyreg's registry
    BUFFER = "buffer"  # an out-of-band buffer


@dataclass(eq=False, slots=True)
class PickledObject:
    """The result that a call would have, and the changes to it afterwards."""

    creation: Creation
    function: Item
    arguments: tuple[Item, ...]
    keywords: PickledDict | None = None
    number: int = 0  # the number of the call in the pickle, from 1; 0: no call
    changes: list[tuple[str, Item, Item]] = field(default_factory=list)  # state, append, set or add, with key and value
    array_type: Any = None  # the NumPy dtype that it describes, if any

    def append(self, item: Item) -> None:
        self.changes.append(("append", None, item))

    def add(self, item: Item) -> None:
        self.changes.append(("add", None, item))

    def __setitem__(self, key: Item, value: Item) -> None:
        self.changes.append(("set", key, value))

    def called(self, *names: str) -> bool:
        """Return whether the object is the result of calling one of these functions (module.name)."""
        return self.creation is Creation.CALL and isinstance(self.function, GlobalName) and str(self.function) in names

    def state(self) -> Item:
        """Return the state set by a single BUILD opcode if there are no other changes, else None."""
        if len(self.changes) == 1 and self.changes[0][0] == "state":
            return self.changes[0][2]
        return None


@dataclass(eq=False, slots=True)
class JoblibArray:
    """A NumPy array of joblib, whose elements follow the object that describes it."""

    description: PickledObject
    array: Any  # its pickle_numpy.ArrayElements; None for an array of objects
    kind: str = ""  # class and shape of an array of objects
    objects: Item = None


Node: TypeAlias = "list[Any] | tuple[Any, ...] | PickledSet | PickledDict | LongString | PickledObject | JoblibArray"
Atom: TypeAlias = "bool | int | float | str | bytes | OldString | GlobalName | None"
Item: TypeAlias = "Node | Atom"
NODES = (list, tuple, PickledSet, PickledDict, LongString, PickledObject, JoblibArray)


def calls_in_order(root: Item) -> list[int]:
    """Return the numbers of the calls in a tree, in the order in which a pickler would write them."""
    numbers: list[int] = []
    seen: dict[int, bool] = {}  # whether the call of a node was counted, by id of the node
    pending = [root]
    while pending:
        item = pending.pop()
        if not isinstance(item, NODES):
            continue
        if id(item) in seen:
            if isinstance(item, PickledObject) and not seen[id(item)]:
                seen[id(item)] = True
                numbers.append(item.number)
            continue
        seen[id(item)] = not isinstance(item, PickledObject) or not item.number
        if isinstance(item, PickledObject):
            changed_nodes = [node for _, key, value in item.changes for node in (key, value)]
            pending += [*reversed(changed_nodes), item, item.keywords, item.arguments, item.function]
        elif isinstance(item, (list, tuple)):
            pending += reversed(item)
        elif isinstance(item, PickledSet):
            pending += reversed(item.items)
        elif isinstance(item, PickledDict):
            pending += [node for pair in reversed(item.items) for node in reversed(pair)]
        elif isinstance(item, JoblibArray):
            pending += [item.objects, item.description]
    return numbers


def exact(item: Item) -> str | None:
    """Return the exact text of an atom, or of a short tuple of atoms; None for a node."""
    if isinstance(item, float):
        return exact_float(item)
    if isinstance(item, OldString):
        return f"str8 {bytes(item)!r}"
    if isinstance(item, int) and not isinstance(item, bool):
        return repr(item) if item.bit_length() < 10_000 else hex(item)  # repr takes quadratic time
    if isinstance(item, GlobalName):
        return f"<{item}>"
    if isinstance(item, (list, tuple)):
        return exact_tuple(item)
    return None if isinstance(item, NODES) else repr(item)


def exact_float(number: float) -> str:
    """Return the shortest decimal text that reproduces a number; for a NaN its bits, too."""
    if number == number:
        return repr(number)
    bits = struct.pack(">d", number).hex()
    return "nan" if bits == "7ff8000000000000" else f"nan {bits}"


def exact_tuple(items: list[Item] | tuple[Item, ...]) -> str | None:
    """Return the exact text of a tuple or list of up to eight short atoms, else None."""
    if len(items) > 8:
        return None
    texts = [None if isinstance(item, (list, tuple)) else exact(item) for item in items]
    exact_texts = [text for text in texts if text is not None]
    if len(exact_texts) < len(texts) or sum(map(len, exact_texts)) > ATOM:
        return None
    if isinstance(items, list):
        return f"[{', '.join(exact_texts)}]"
    return f"({exact_texts[0]},)" if len(exact_texts) == 1 else f"({', '.join(exact_texts)})"
