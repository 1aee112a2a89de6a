"""Converts the nodes of a pickle to parts with readable names, each node once, without recursion.

The parts describe type, content and order of each node, so that pickles of different meaning never compare equal.
Results of calls that a pickle discards have no name: then all of its opcodes are compared.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Blob, Limits, Noise, Part, Source, TensorPart, Value
from reprokit.diff.formats.pickle_nodes import (
    ATOM,
    NODES,
    Creation,
    GlobalName,
    Item,
    LongString,
    OldString,
    PickledDict,
    PickledObject,
    PickledSet,
    exact,
)
from reprokit.diff.sources import BytesSource, read_whole

ROOT = "(root)"
ORDERED = "collections.OrderedDict"
LONGEST_SEGMENT = 120  # characters of one level of a name
LONGEST_ORDER = 2000  # characters of keys that are listed individually
NUMBERS = 32  # a longer list of numbers of one type is a tensor
SHORT_STRING = 256  # characters or bytes of the longest string shown as a value
MOST_REPEATS = 4  # how many times the size of a file its tensors may add up to

Step: TypeAlias = "tuple[str, Item]"
NodeParts: TypeAlias = "tuple[Iterable[Part], Iterable[Step]]"
Recognizer: TypeAlias = "Callable[[PickleWalk, str, Any], NodeParts | None]"


class PickleWalk:
    """One walk over the nodes of a file: the names used so far, and the remaining limits."""

    def __init__(self, limits: Limits, size: int, recognizers: Iterable[Recognizer] = ()):
        self.limits = limits
        self.recognizers = tuple(recognizers)
        self.room = MOST_REPEATS * size + limits.header
        self.total_length = 0
        self.names: dict[str, int] = {}  # each name in use, with the last number appended to it
        self.nodes: dict[str, int] = {}
        self.seen: dict[int, str] = {}
        self.keep: list[object] = []  # keeps the nodes in `seen` alive, so that their ids stay unique

    def tree(self, path: str, root: Item) -> Iterator[Part]:
        """Yield the parts of a node and of all its descendants."""
        steps: list[Iterator[Step]] = [iter([(path, root)])]
        while steps:
            step = next(steps[-1], None)
            if step is None:
                steps.pop()
                continue
            if len(steps) > self.limits.nesting:
                raise ArtifactDamaged(f"objects are nested more than {self.limits.nesting} levels deep")
            parts, below = self.node(*step)
            yield from parts
            steps.append(iter(below))

    def node(self, path: str, item: Item) -> NodeParts:
        """Return the parts of one node, and the steps to its children."""
        if not isinstance(item, NODES) or item == ():
            return self.atom(path, item), ()
        first_path = self.first_seen(item, path)
        if first_path is not None:
            return (self.value(path, f"the same object as {first_path}"),), ()
        if isinstance(item, (list, tuple)):
            return self.sequence(path, item)
        if isinstance(item, PickledSet):
            return self.set(path, item)
        if isinstance(item, PickledDict):
            keys = [key for key, _ in item.items]
            return self.keyed(path, f"dict of {len(keys)}", keys), self.pairs(path, item.items)
        if isinstance(item, LongString):
            return self.string(path, item.kind, item.source), ()
        recognized = (recognizer(self, path, item) for recognizer in self.recognizers)
        node_parts = next((parts for parts in recognized if parts is not None), None)
        if node_parts is None:
            assert isinstance(item, PickledObject)  # as a recognizer handles all arrays of joblib
            node_parts = self.ordered_dict(path, item) or self.object(path, item)
        return node_parts

    def first_seen(self, item: object, path: str) -> str | None:
        """Return the path of the first visit to a node; None at the first visit."""
        if id(item) in self.seen:
            return self.seen[id(item)]
        self.seen[id(item)] = unused(self.nodes, path or ROOT)
        self.keep.append(item)
        return None

    # Parts

    def named(self, path: str) -> str:
        """Return an unused name for a part."""
        name = unused(self.names, path or ROOT)
        self.hold(len(name))
        return name

    def hold(self, length: int) -> None:
        self.total_length += length
        if self.total_length > self.limits.header:
            raise ArtifactDamaged(f"names and values come to more than {self.limits.header} bytes")

    def spend(self, path: str, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise ArtifactDamaged(f"{path or ROOT}: tensors show the same bytes over and over")

    def value(self, path: str, text: str) -> Value:
        self.hold(len(text))
        return Value(self.named(path), text)

    def noise(self, path: str, text: str) -> Noise:
        """Return a property that the library of the object chose by itself, as noise."""
        self.hold(len(text))
        return Noise(self.named(path), text)

    def blob(self, path: str, source: Source) -> Blob:
        self.spend(path, source.size)
        return Blob(self.named(path), source)

    def tensor(self, path: str, tensor: TensorPart, size: int) -> TensorPart:
        """Return a tensor under an unused name; size in bytes."""
        self.spend(path, size)
        return replace(tensor, name=self.named(path))

    def atom(self, path: str, item: Item) -> Iterable[Part]:
        if isinstance(item, (str, bytes)) and len(item) > SHORT_STRING:
            kind = "str" if isinstance(item, str) else "string" if isinstance(item, OldString) else "bytes"
            data = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else bytes(item)
            return self.string(path, kind, BytesSource(data))
        return (self.value(path, "tuple of 0" if item == () else exact(item) or ""),)

    def string(self, path: str, kind: str, source: Source) -> Iterator[Part]:
        if source.size <= SHORT_STRING:
            yield self.value(path, f"{kind} {read_whole(source, ATOM)!r}")
        else:
            yield self.value(path, f"{kind} of {source.size} bytes")
            yield self.blob(f"{path or ROOT} (contents)", source)

    # Containers

    def sequence(self, path: str, items: list[Item] | tuple[Item, ...]) -> NodeParts:
        text = exact(items) if items else None
        if text is not None:
            return (self.value(path, text),), ()
        kind = "list" if isinstance(items, list) else "tuple"
        numbers = numbers_of(items) if len(items) > NUMBERS else None
        if numbers is not None:
            return self.numbers(path, f"{kind} of {len(items)} numbers", numbers), ()
        return (self.value(path, f"{kind} of {len(items)}"),), self.elements(path, items)

    def elements(self, path: str, items: Iterable[Item]) -> Iterator[Step]:
        return ((under(path, str(i)), element) for i, element in enumerate(items))

    def numbers(self, path: str, description: str, tensor: TensorPart) -> Iterator[Part]:
        size = tensor.source.size
        self.hold(size)
        yield self.value(f"{path or ROOT} (type)", description)
        yield self.tensor(path, tensor, size)

    def set(self, path: str, item: PickledSet) -> NodeParts:
        """Return the parts of a set: sorted, or in the order of the file if it cannot be sorted."""
        texts = sorted_texts(item.items, self.limits.header - self.total_length)
        description = f"{item.kind} of {len(item.items)}"
        if texts is None:
            return (self.value(path, f"{description}, in this order"),), self.elements(path, item.items)
        return (self.value(path, f"{description}: {self.listed(texts)}"),), ()

    def keyed(self, path: str, description: str, keys: list[Item]) -> Iterator[Part]:
        yield self.value(path, description)
        if keys:
            yield self.order(path, "keys", keys)

    def order(self, path: str, what: str, keys: list[Item]) -> Part:
        texts = (exact(key) or f"(key {number})" for number, key in enumerate(keys))
        return self.value(f"{path or ROOT} (order of {what})", self.listed(texts))

    def listed(self, texts: Iterable[str]) -> str:
        return listed(texts, self.limits.header - self.total_length)

    def pairs(self, path: str, items: Iterable[tuple[Item, Item]]) -> Iterator[Step]:
        for number, (key, value) in enumerate(items):
            if exact(key) is not None:
                yield under(path, segment(key)), value
            else:
                yield under(path, f"(key {number})"), key
                yield under(path, f"(value {number})"), value

    # Objects

    def ordered_dict(self, path: str, item: PickledObject) -> NodeParts | None:
        """Return the parts of an OrderedDict, with items like those of a dict; None for other objects."""
        if not item.called(ORDERED) or item.keywords is not None or any(kind != "set" for kind, _, _ in item.changes):
            return None
        pairs = initial_pairs(item)
        if pairs is None:
            return None
        later = [(key, value) for _, key, value in item.changes]
        keys = [key for key, _ in [*pairs, *later]]
        below = itertools.chain(self.pairs(path, pairs), self.pairs(path, later))
        return self.keyed(path, f"OrderedDict of {len(keys)}", keys), below

    def object(self, path: str, item: PickledObject) -> NodeParts:
        """Return the parts of an object: the call that would create it, and the later changes."""
        is_named = item.function is None or isinstance(item.function, GlobalName)
        description = f"{item.creation.value} {'(function)' if not is_named else str(item.function or '')}"
        arguments = exact(item.arguments)
        if arguments is not None and is_named and not (item.changes or item.keywords):
            return (self.value(path, f"{description}{arguments}"),), ()
        return self.described(path, item, description.strip()), self.below(path, item)

    def described(self, path: str, item: PickledObject, description: str) -> Iterator[Part]:
        words = [description, f"{len(item.arguments)} arguments"]
        if item.keywords is not None:
            words.append(f"{len(item.keywords.items)} keywords")
        yield self.value(path, ", ".join([*words, *changes_of(item)]))
        keys = [key for kind, key, _ in item.changes if kind == "set"]
        if keys:
            yield self.order(path, "keys", keys)
        state = next((value for kind, _, value in item.changes if kind == "state"), None)
        if isinstance(state, PickledDict) and id(state) not in self.seen:
            yield self.order(path, "attributes", [key for key, _ in state.items])

    def below(self, path: str, item: PickledObject) -> Iterator[Step]:
        if item.function is not None and not isinstance(item.function, GlobalName):
            yield under(path, "(function)"), item.function
        yield from self.elements(under(path, "(arguments)"), item.arguments)
        if item.keywords is not None:
            yield under(path, "(keywords)"), item.keywords
        counts = {"append": 0, "add": 0, "set": 0, "state": 0}
        for kind, key, value in item.changes:
            number = counts[kind]
            counts[kind] += 1
            if kind == "state":
                yield from self.state(path, value, number)
            elif kind == "set":
                yield from self.pairs(path, [(key, value)])
            else:
                yield under(path, str(number)), value

    def state(self, path: str, value: Item, number: int) -> Iterator[Step]:
        """Yield the attributes of an object as its direct children if its state is an unshared dict."""
        attributes = under(path, "(attributes)")
        if isinstance(value, PickledDict) and number == 0 and self.first_seen(value, attributes) is None:
            yield from self.pairs(path, value.items)
        else:
            yield under(path, "(state)"), value


def unused(names: dict[str, int], name: str) -> str:
    """Reserve and return a name, with a number appended if it is in use."""
    candidate, number = name, names.get(name, 0)
    while candidate in names:
        number += 1
        candidate = f"{name} ({number + 1})"
    names[name] = number
    names.setdefault(candidate, 0)
    return candidate


def root_name(item: Item) -> str:
    """Return the class name of an object as the root name; empty for other values."""
    is_named = isinstance(item, PickledObject) and isinstance(item.function, GlobalName)
    if is_named and item.creation in (Creation.NEW, Creation.INSTANCE):  # type: ignore[union-attr]
        return segment(item.function.name)  # type: ignore[union-attr]
    return ""


def under(path: str, name: str) -> str:
    """Return the path of a name below a path."""
    return f"{path}/{name}" if path and name else path or name


def segment(key: Item) -> str:
    """Return a key as one level of a path: short, in valid UTF-8."""
    text = key if isinstance(key, str) else exact(key) or ""
    if isinstance(key, bytes):
        text = key.decode("ascii", "backslashreplace")
    text = text[: LONGEST_SEGMENT + 1].encode("utf-8", "backslashreplace").decode("utf-8") or "''"
    return text if len(text) <= LONGEST_SEGMENT else f"{text[:LONGEST_SEGMENT]}..."


def listed(texts: Iterable[str], most: int) -> str:
    """Join texts; if they are too long, some of them and the digest of all."""
    digest = hashlib.sha256()
    shown: list[str] = []
    length = 0
    for text in texts:
        digest.update(struct.pack("<Q", len(text)) + text.encode("utf-8", "surrogatepass"))
        length += len(text) + 2
        if length > most:
            raise ArtifactDamaged("names and values come to more than are read")
        if length <= LONGEST_ORDER:
            shown.append(text)
    if length <= LONGEST_ORDER:
        return ", ".join(shown)
    return f"{', '.join(shown)} and more, in all of SHA-256 {digest.hexdigest()}"


def changes_of(item: PickledObject) -> list[str]:
    """Describe the changes to an object in order, with counts."""
    words = {"state": "state", "append": "appended", "add": "added", "set": "set"}
    runs = itertools.groupby(kind for kind, _, _ in item.changes)
    return [f"{len(list(run))} {words[kind]}" for kind, run in runs]


def initial_pairs(item: PickledObject) -> list[tuple[Item, Item]] | None:
    """Return the pairs passed to OrderedDict(): none, or the list that Python 2 writes; None for others."""
    if not item.arguments:
        return []
    items = item.arguments[0]
    if len(item.arguments) != 1 or not isinstance(items, list):
        return None
    pairs = [tuple(pair) for pair in items if isinstance(pair, (list, tuple)) and len(pair) == 2]
    return pairs if len(pairs) == len(items) else None


def numbers_of(items: list[Item] | tuple[Item, ...]) -> TensorPart | None:
    """Return a list of numbers of one type as a tensor; None for others."""
    kind = type(items[0])
    if kind not in (float, int) or any(type(item) is not kind for item in items):
        return None
    dtype, letter = ("float64", "d") if kind is float else ("int64", "q")
    try:
        return TensorPart("", dtype, (len(items),), BytesSource(struct.pack(f"<{len(items)}{letter}", *items)))
    except struct.error:  # beyond 64 bits
        return None


def sorted_texts(items: list[Item], most: int) -> list[str] | None:
    """Return the sorted texts of the elements of a set; None if they are ambiguous or not unique."""
    texts: list[str] = []
    for item in items:
        text = exact(item)
        if text is None or (isinstance(item, (list, tuple)) and any(type(left) is not str for left in item)):
            return None
        texts.append(text)
        most -= len(text)
        if most < 0:
            raise ArtifactDamaged("the elements of a set come to more than are read")
    numbers = sorted(item for item in items if isinstance(item, (int, float)) and item == item)
    texts.sort()
    equal = any(left == right for values in (numbers, texts) for left, right in itertools.pairwise(values))
    return None if equal else texts
