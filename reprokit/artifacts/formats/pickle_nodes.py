"""What a pickle describes: inert nodes instead of objects, in which names stay text and calls are never made.

None, truth values, numbers and short strings stand for themselves, lists and tuples are Python's own. All else is a
node, and the same node wherever the pickle means the same object. Nothing of it is ever hashed or compared by contents.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from reprokit.artifacts.elements import Source

ATOM = 4096  # characters or bytes of the longest string that is no node


class OldString(bytes):
    """A `str` of Python 2, of which nobody knows whether it means text or bytes."""


@dataclass(frozen=True)
class GlobalName:
    """The name of a class or function, which is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        if not all(part.isidentifier() for part in f"{self.module}.{self.name}".split(".")):
            return f"{self.module!r}.{self.name!r}"
        return f"{self.module}{':' if '.' in self.name else '.'}{self.name}"


@dataclass(eq=False, slots=True)
class PickledSet:
    """A set or frozenset: its elements as they were added."""

    kind: str
    items: list[Item]

    def add(self, item: Item) -> None:
        self.items.append(item)


@dataclass(eq=False, slots=True)
class PickledDict:
    """A dict: its pairs as they were set, the same key twice if that is what the pickle does."""

    items: list[tuple[Item, Item]]

    def __setitem__(self, key: Item, value: Item) -> None:
        self.items.append((key, value))


@dataclass(eq=False, slots=True)
class LongString:
    """Long bytes, a bytearray, a long string or number: where they stand."""

    kind: str  # bytes, bytearray, str, string (of Python 2), int
    source: Source
    as_bytes: Any = None  # what it is as Latin-1, once that was asked for


class Creation(Enum):
    """How an object comes to be."""

    CALL = "call"  # function(*arguments)
    NEW = "new"  # class.__new__(class, *arguments)
    INSTANCE = "instance"  # of a class of Python 2
    PERSISTENT = "persistent"  # looked up by whoever reads the pickle
    EXTENSION = "extension"  # a number of copyreg's registry
    BUFFER = "buffer"  # handed over beside the pickle


@dataclass(eq=False, slots=True)
class PickledObject:
    """What a call would return, and what is done to it afterwards."""

    creation: Creation
    function: Item
    arguments: tuple[Item, ...]
    keywords: PickledDict | None = None
    number: int = 0  # of the calls of a pickle, from one on; 0 for what is no call
    changes: list[tuple[str, Item, Item]] = field(default_factory=list)  # state, append, set or add, with key and value
    array_type: Any = None  # the type of NumPy that it describes, if it does

    def append(self, item: Item) -> None:
        self.changes.append(("append", None, item))

    def add(self, item: Item) -> None:
        self.changes.append(("add", None, item))

    def __setitem__(self, key: Item, value: Item) -> None:
        self.changes.append(("set", key, value))

    def called(self, *names: str) -> bool:
        """Return whether it comes of a call of one of these functions, written module.name."""
        return self.creation is Creation.CALL and isinstance(self.function, GlobalName) and str(self.function) in names

    def state(self) -> Item:
        """Return what one BUILD sets, where nothing else is done to it; else None."""
        if len(self.changes) == 1 and self.changes[0][0] == "state":
            return self.changes[0][2]
        return None


@dataclass(eq=False, slots=True)
class JoblibArray:
    """A NumPy array whose elements follow the object that describes it, as joblib writes them."""

    description: PickledObject
    array: Any  # its elements, as pickle_numpy has them; None for one of objects
    kind: str = ""  # of one of objects
    objects: Item = None


Node: TypeAlias = "list[Any] | tuple[Any, ...] | PickledSet | PickledDict | LongString | PickledObject | JoblibArray"
Atom: TypeAlias = "bool | int | float | str | bytes | OldString | GlobalName | None"
Item: TypeAlias = "Node | Atom"
NODES = (list, tuple, PickledSet, PickledDict, LongString, PickledObject, JoblibArray)


def calls_in_order(root: Item) -> list[int]:
    """Return the numbers of the calls that the tree below a node holds, in the order in which a pickler makes them."""
    found: list[int] = []
    seen: dict[int, bool] = {}  # nodes by identity, with whether their call was counted
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, NODES):
            continue
        if id(item) in seen:
            if isinstance(item, PickledObject) and not seen[id(item)]:
                seen[id(item)] = True
                found.append(item.number)
            continue
        seen[id(item)] = not isinstance(item, PickledObject) or not item.number
        if isinstance(item, PickledObject):
            changed = [one for _, key, value in item.changes for one in (key, value)]
            waiting += [*reversed(changed), item, item.keywords, item.arguments, item.function]
        elif isinstance(item, (list, tuple)):
            waiting += reversed(item)
        elif isinstance(item, PickledSet):
            waiting += reversed(item.items)
        elif isinstance(item, PickledDict):
            waiting += [one for pair in reversed(item.items) for one in reversed(pair)]
        elif isinstance(item, JoblibArray):
            waiting += [item.objects, item.description]
    return found


def exact(item: Item) -> str | None:
    """Return an atom, or a tuple of few atoms, as text that says it exactly; None for a node."""
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
    """Return the shortest decimals that give this number again; a NaN with its bits."""
    if number == number:
        return repr(number)
    bits = struct.pack(">d", number).hex()
    return "nan" if bits == "7ff8000000000000" else f"nan {bits}"


def exact_tuple(items: list[Item] | tuple[Item, ...]) -> str | None:
    """Return a tuple or list of up to eight short atoms."""
    if len(items) > 8:
        return None
    texts = [None if isinstance(one, (list, tuple)) else exact(one) for one in items]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts) or sum(map(len, known)) > ATOM:
        return None
    if isinstance(items, list):
        return f"[{', '.join(known)}]"
    return f"({known[0]},)" if len(known) == 1 else f"({', '.join(known)})"
