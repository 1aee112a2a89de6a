"""Walks the nodes of a pickle into parts with readable names, each node once, with no recursion.

Every node says what it is and what it holds in which order, so that two pickles of different meaning never come out
the same. What a pickle would call and then throw away cannot be named: then all of its opcodes are compared.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from reprokit.artifacts.elements import Blob, Limits, Noise, Part, Source, TensorPart, Value
from reprokit.artifacts.formats.pickle_nodes import (
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
from reprokit.artifacts.sources import BytesSource, piece, read_whole
from reprokit.errors import ArtifactDamaged

ROOT = "(root)"
ORDERED = "collections.OrderedDict"
LONGEST_SEGMENT = 120  # characters of one level of a name
LONGEST_ORDER = 2000  # characters of keys that are listed one by one
NUMBERS = 32  # a list of more numbers of one type is a tensor
SHORT_STRING = 256  # characters or bytes that are shown as a value
OVER_AND_OVER = 4  # how often the bytes of a file may be shown by several tensors

if TYPE_CHECKING:
    from reprokit.artifacts.formats.pickle_unpickler import InertUnpickler

Step: TypeAlias = "tuple[str, Item]"
Seen: TypeAlias = "tuple[Iterable[Part], Iterable[Step]]"
Recognizer: TypeAlias = "Callable[[PickleWalk, str, Any], Seen | None]"


class PickleWalk:
    """One walk over the nodes of a file: the names given so far and what it may still yield."""

    def __init__(self, limits: Limits, size: int, recognizers: Iterable[Recognizer] = ()):
        self.limits = limits
        self.recognizers = tuple(recognizers)
        self.room = OVER_AND_OVER * size + limits.header
        self.held = 0
        self.names: dict[str, int] = {}  # each name given, with how many were asked for
        self.nodes: dict[str, int] = {}
        self.seen: dict[int, str] = {}
        self.keep: list[object] = []  # of what seen knows by its id

    def pickle(self, loaded: InertUnpickler, root: Item, path: str = "") -> Iterator[Part]:
        """Yield all that a pickle means; and all of its opcodes where that is not all of what it does."""
        yield from self.tree(under(path, root_name(root)), root)
        if loaded.lost or loaded.revised:
            lost = f"{loaded.lost} results of calls are thrown away"
            what = lost if loaded.lost else "objects change after calls that know them"
            yield self.value(under(path, "(opcodes)"), what)
            opcodes = piece(loaded.stream.source, loaded.start, loaded.stop - loaded.start)
            yield self.blob(under(path, "(all opcodes)"), opcodes)
        frames = f", {loaded.frames} frames" if loaded.frames else ""
        yield Noise(self.named(under(path, "(protocol)")), f"{loaded.proto}{frames}")

    def tree(self, path: str, root: Item) -> Iterator[Part]:
        """One node and all below it."""
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

    def node(self, path: str, item: Item) -> Seen:
        """Return the parts of one node, and the steps to those below it."""
        if not isinstance(item, NODES) or item == ():
            return self.atom(path, item), ()
        before = self.first_seen(item, path)
        if before is not None:
            return (self.value(path, f"the same object as {before}"),), ()
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
        found = next((one for one in recognized if one is not None), None)
        if found is None:
            assert isinstance(item, PickledObject)  # as joblib's arrays are recognized wherever they are found
            found = self.ordered_dict(path, item) or self.object(path, item)
        return found

    def first_seen(self, item: object, path: str) -> str | None:
        """Return the name under which this very node came before, if it did."""
        if id(item) in self.seen:
            return self.seen[id(item)]
        self.seen[id(item)] = unused(self.nodes, path or ROOT)
        self.keep.append(item)
        return None

    # Parts

    def named(self, path: str) -> str:
        """Return a name that no part has yet."""
        name = unused(self.names, path or ROOT)
        self.hold(len(name))
        return name

    def hold(self, length: int) -> None:
        self.held += length
        if self.held > self.limits.header:
            raise ArtifactDamaged(f"names and values come to more than {self.limits.header} bytes")

    def spend(self, path: str, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise ArtifactDamaged(f"{path or ROOT}: tensors show the same bytes over and over")

    def value(self, path: str, text: str) -> Value:
        self.hold(len(text))
        return Value(self.named(path), text)

    def noise(self, path: str, text: str) -> Noise:
        """Return what the object's own library chose, and no value of it says."""
        self.hold(len(text))
        return Noise(self.named(path), text)

    def blob(self, path: str, source: Source) -> Blob:
        self.spend(path, source.size)
        return Blob(self.named(path), source)

    def tensor(self, path: str, tensor: TensorPart, size: int) -> TensorPart:
        """Return the tensor under a name of its own; size in bytes."""
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

    def sequence(self, path: str, items: list[Item] | tuple[Item, ...]) -> Seen:
        text = exact(items) if items else None
        if text is not None:
            return (self.value(path, text),), ()
        kind = "list" if isinstance(items, list) else "tuple"
        numbers = numbers_of(items) if len(items) > NUMBERS else None
        if numbers is not None:
            return self.numbers(path, f"{kind} of {len(items)} numbers", numbers), ()
        return (self.value(path, f"{kind} of {len(items)}"),), self.elements(path, items)

    def elements(self, path: str, items: Iterable[Item]) -> Iterator[Step]:
        return ((under(path, str(i)), one) for i, one in enumerate(items))

    def numbers(self, path: str, what: str, tensor: TensorPart) -> Iterator[Part]:
        size = tensor.source.size
        self.hold(size)
        yield self.value(f"{path or ROOT} (type)", what)
        yield self.tensor(path, tensor, size)

    def set(self, path: str, item: PickledSet) -> Seen:
        """Return a set, whose order is noise; where it cannot be sorted, it is compared in the order of the file."""
        texts = sorted_texts(item.items, self.limits.header - self.held)
        what = f"{item.kind} of {len(item.items)}"
        if texts is None:
            return (self.value(path, f"{what}, in this order"),), self.elements(path, item.items)
        return (self.value(path, f"{what}: {self.listed(texts)}"),), ()

    def keyed(self, path: str, what: str, keys: list[Item]) -> Iterator[Part]:
        yield self.value(path, what)
        if keys:
            yield self.order(path, "keys", keys)

    def order(self, path: str, what: str, keys: list[Item]) -> Part:
        texts = (exact(key) or f"(key {number})" for number, key in enumerate(keys))
        return self.value(f"{path or ROOT} (order of {what})", self.listed(texts))

    def listed(self, texts: Iterable[str]) -> str:
        return listed(texts, self.limits.header - self.held)

    def pairs(self, path: str, items: Iterable[tuple[Item, Item]]) -> Iterator[Step]:
        for number, (key, value) in enumerate(items):
            if exact(key) is not None:
                yield under(path, segment(key)), value
            else:
                yield under(path, f"(key {number})"), key
                yield under(path, f"(value {number})"), value

    # Objects

    def ordered_dict(self, path: str, item: PickledObject) -> Seen | None:
        """Return an OrderedDict, whose items stand below it like those of a dict."""
        if not item.called(ORDERED) or item.keywords is not None or any(how != "set" for how, _, _ in item.changes):
            return None
        pairs = given_pairs(item)
        if pairs is None:
            return None
        later = [(key, value) for _, key, value in item.changes]
        keys = [key for key, _ in [*pairs, *later]]
        below = itertools.chain(self.pairs(path, pairs), self.pairs(path, later))
        return self.keyed(path, f"OrderedDict of {len(keys)}", keys), below

    def object(self, path: str, item: PickledObject) -> Seen:
        """Return what would make an object, and what would be done to it."""
        named = item.function is None or isinstance(item.function, GlobalName)
        said = f"{item.creation.value} {'(function)' if not named else str(item.function or '')}"
        given = exact(item.arguments)
        if given is not None and named and not (item.changes or item.keywords):
            return (self.value(path, f"{said}{given}"),), ()
        return self.described(path, item, said.strip()), self.below(path, item)

    def described(self, path: str, item: PickledObject, said: str) -> Iterator[Part]:
        words = [said, f"{len(item.arguments)} arguments"]
        if item.keywords is not None:
            words.append(f"{len(item.keywords.items)} keywords")
        yield self.value(path, ", ".join([*words, *changes_of(item)]))
        keys = [key for how, key, _ in item.changes if how == "set"]
        if keys:
            yield self.order(path, "keys", keys)
        state = next((value for how, _, value in item.changes if how == "state"), None)
        if isinstance(state, PickledDict) and id(state) not in self.seen:
            yield self.order(path, "attributes", [key for key, _ in state.items])

    def below(self, path: str, item: PickledObject) -> Iterator[Step]:
        if item.function is not None and not isinstance(item.function, GlobalName):
            yield under(path, "(function)"), item.function
        yield from self.elements(under(path, "(arguments)"), item.arguments)
        if item.keywords is not None:
            yield under(path, "(keywords)"), item.keywords
        counts = {"append": 0, "add": 0, "set": 0, "state": 0}
        for how, key, value in item.changes:
            number = counts[how]
            counts[how] += 1
            if how == "state":
                yield from self.state(path, value, number)
            elif how == "set":
                yield from self.pairs(path, [(key, value)])
            else:
                yield under(path, str(number)), value

    def state(self, path: str, value: Item, number: int) -> Iterator[Step]:
        """Yield an object's attributes right below it, where they are a dict of its own."""
        attributes = under(path, "(attributes)")
        if isinstance(value, PickledDict) and number == 0 and self.first_seen(value, attributes) is None:
            yield from self.pairs(path, value.items)
        else:
            yield under(path, "(state)"), value


def unused(names: dict[str, int], name: str) -> str:
    """Return the name, or the name with the first number under which it is not taken; it is taken then."""
    found, number = name, names.get(name, 0)
    while found in names:
        number += 1
        found = f"{name} ({number + 1})"
    names[name] = number
    names.setdefault(found, 0)
    return found


def root_name(item: Item) -> str:
    """Return the class of an object; nothing for anything else, whose parts are named by their keys alone."""
    named = isinstance(item, PickledObject) and isinstance(item.function, GlobalName)
    if named and item.creation in (Creation.NEW, Creation.INSTANCE):  # type: ignore[union-attr]
        return segment(item.function.name)  # type: ignore[union-attr]
    return ""


def under(path: str, name: str) -> str:
    """Return the name of what stands below something."""
    return f"{path}/{name}" if path and name else path or name


def segment(key: Item) -> str:
    """One level of a name: short, and text that can be written anywhere."""
    text = key if isinstance(key, str) else exact(key) or ""
    if isinstance(key, bytes):
        text = key.decode("ascii", "backslashreplace")
    text = text[: LONGEST_SEGMENT + 1].encode("utf-8", "backslashreplace").decode("utf-8") or "''"
    return text if len(text) <= LONGEST_SEGMENT else f"{text[:LONGEST_SEGMENT]}..."


def listed(texts: Iterable[str], most: int) -> str:
    """Return all of the texts, or some of them and the digest of all."""
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
    """Return what is done to an object, in order, with how often."""
    words = {"state": "state", "append": "appended", "add": "added", "set": "set"}
    runs = itertools.groupby(how for how, _, _ in item.changes)
    return [f"{len(list(run))} {words[how]}" for how, run in runs]


def given_pairs(item: PickledObject) -> list[tuple[Item, Item]] | None:
    """Return what an OrderedDict is made with: nothing, or as Python 2 writes it a list of pairs."""
    if not item.arguments:
        return []
    given = item.arguments[0]
    if len(item.arguments) != 1 or not isinstance(given, list):
        return None
    pairs = [tuple(pair) for pair in given if isinstance(pair, (list, tuple)) and len(pair) == 2]
    return pairs if len(pairs) == len(given) else None


def numbers_of(items: list[Item] | tuple[Item, ...]) -> TensorPart | None:
    """Many numbers of one type as a tensor."""
    kind = type(items[0])
    if kind not in (float, int) or any(type(item) is not kind for item in items):
        return None
    dtype, letter = ("float64", "d") if kind is float else ("int64", "q")
    try:
        return TensorPart("", dtype, (len(items),), BytesSource(struct.pack(f"<{len(items)}{letter}", *items)))
    except struct.error:  # beyond 64 bits
        return None


def sorted_texts(items: list[Item], most: int) -> list[str] | None:
    """Return the elements of a set in one order; None where that is not clear, or where some of them are equal."""
    texts: list[str] = []
    for item in items:
        text = exact(item)
        if text is None or (isinstance(item, (list, tuple)) and any(type(one) is not str for one in item)):
            return None
        texts.append(text)
        most -= len(text)
        if most < 0:
            raise ArtifactDamaged("the elements of a set come to more than are read")
    numbers = sorted(item for item in items if isinstance(item, (int, float)) and item == item)
    texts.sort()
    equal = any(one == other for found in (numbers, texts) for one, other in itertools.pairwise(found))
    return None if equal else texts
