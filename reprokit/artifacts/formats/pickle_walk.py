"""Walks the nodes of a pickle into parts with readable names, each node once, with no recursion.

Every node says what it is and what it holds in which order, so that two pickles of different meaning never come out
the same. What a pickle would call and then throw away cannot be named: then all of its opcodes are compared.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from reprokit.artifacts.formats.pickle_machine import Pickle
from reprokit.artifacts.formats.pickle_nodes import (
    ATOM,
    Array,
    Global,
    How,
    Item,
    Mapping,
    Object,
    Octets,
    OldString,
    Sequence,
    exact,
)
from reprokit.artifacts.parts import Blob, Limits, Noise, Part, Source, Tensor, Value
from reprokit.artifacts.sources import Memory, piece, whole
from reprokit.errors import ArtifactDamaged

ROOT = "(root)"
LONGEST_SEGMENT = 120  # characters of one level of a name
LONGEST_ORDER = 2000  # characters of keys that are listed one by one
NUMBERS = 32  # a list of more numbers of one type is a tensor
SHORT_STRING = 256  # characters or bytes that are shown as a value
OVER_AND_OVER = 4  # how often the bytes of a file may be shown by several tensors


@dataclass(frozen=True)
class Made:
    """Stands in the walk where a call would be made."""

    object: Object


Step: TypeAlias = "tuple[str, Item | Made]"
Seen: TypeAlias = "tuple[Iterable[Part], Iterator[Step] | None]"
Recogniser: TypeAlias = "Callable[[Walk, str, Object], Seen | None]"


class Walk:
    """One walk over the nodes of a file: the names given so far and what it may still yield."""

    def __init__(
        self,
        limits: Limits,
        size: int,
        recognisers: Iterable[Recogniser] = (),
        array: Callable[[Walk, str, Array], Seen] | None = None,
    ):
        self.limits = limits
        self.recognisers = tuple(recognisers)
        self.array = array
        self.room = OVER_AND_OVER * size + limits.header
        self.held = 0
        self.names: dict[str, int] = {}  # each name given, with how many were asked for
        self.nodes: dict[str, int] = {}
        self.seen: dict[int, str] = {}
        self.made: set[int] = set()
        self.last = 0
        self.in_order = True
        self.known: dict[int, tuple[Item, object]] = {}  # what was made out of nodes before
        self.keep: list[object] = []  # of what seen knows by its id

    def pickle(self, found: Pickle, source: Source, path: str = "") -> Iterator[Part]:
        """All that a pickle means; and all of its opcodes where that is not all of what it does."""
        self.made, self.last, self.in_order = set(), 0, True
        yield from self.tree(under(path, root_name(found.root)), found.root)
        missed = len(found.calls.made) - len(self.made)
        if missed or found.revised or not self.in_order:
            what = (
                f"{missed} results of calls are thrown away" if missed else "objects change after calls that know them"
            )
            yield self.value(under(path, "(opcodes)"), what)
            yield self.blob(under(path, "(all opcodes)"), piece(source, found.start, found.stop - found.start))

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
            if below is not None:
                steps.append(below)

    def node(self, path: str, item: Item | Made) -> Seen:
        """The parts of one node, and the steps to those below it."""
        if isinstance(item, Made):
            self.meet(item.object)
            return (), None
        if isinstance(item, (Sequence, Mapping, Octets, Object, Array)):
            return self.new_node(path, item)
        return self.atom(path, item), None

    def new_node(self, path: str, item: Sequence | Mapping | Octets | Object | Array) -> Seen:
        before = self.first_seen(item, path)
        if before is not None:
            return (self.value(path, f"the same object as {before}"),), None
        if isinstance(item, Sequence):
            return self.sequence(path, item)
        if isinstance(item, Mapping):
            return self.mapping(path, item)
        if isinstance(item, Octets):
            return self.octets(path, item.kind, item.source), None
        if isinstance(item, Array):
            if self.array is None:
                raise ArtifactDamaged(f"{path or ROOT}: an array of joblib where none can be")
            return self.array(self, path, item)
        for recogniser in self.recognisers:
            found = recogniser(self, path, item)
            if found is not None:
                return found
        return self.object(path, item)

    def first_seen(self, item: object, path: str) -> str | None:
        """The name under which this very node came before, if it did."""
        if id(item) in self.seen:
            return self.seen[id(item)]
        self.seen[id(item)] = unused(self.nodes, path or ROOT)
        self.keep.append(item)
        return None

    def meet(self, item: Object) -> None:
        """Take note that a call has its place in the tree."""
        if not item.number or item.number in self.made:
            return
        self.made.add(item.number)
        self.in_order &= item.number > self.last
        self.last = item.number

    def pass_over(self, item: Object) -> None:
        """Take note of a call without effects of its own, wherever it is made."""
        self.made.add(item.number)

    # Parts

    def named(self, path: str) -> str:
        """A name that no part has yet."""
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
        """What the object's own library chose, and no value of it says."""
        self.hold(len(text))
        return Noise(self.named(path), text)

    def blob(self, path: str, source: Source) -> Blob:
        self.spend(path, source.size)
        return Blob(self.named(path), source)

    def tensor(self, path: str, tensor: Tensor, size: int) -> Tensor:
        """The tensor under a name of its own; size in bytes."""
        self.spend(path, size)
        return Tensor(
            self.named(path),
            tensor.dtype,
            tensor.shape,
            tensor.source,
            tensor.offset,
            tensor.strides,
            tensor.big_endian,
        )

    def atom(self, path: str, item: Item) -> Iterable[Part]:
        if isinstance(item, (str, bytes)) and len(item) > SHORT_STRING:
            kind = "str" if isinstance(item, str) else "string" if isinstance(item, OldString) else "bytes"
            data = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else bytes(item)
            return self.octets(path, kind, Memory(data))
        text = exact(item)
        assert text is not None
        return (self.value(path, text),)

    def octets(self, path: str, kind: str, source: Source) -> Iterator[Part]:
        if source.size <= SHORT_STRING:
            yield self.value(path, f"{kind} {whole(source, ATOM)!r}")
        else:
            yield self.value(path, f"{kind} of {source.size} bytes")
            yield self.blob(f"{path or ROOT} (contents)", source)

    # Containers

    def sequence(self, path: str, item: Sequence) -> Seen:
        text = exact(item)
        if text is not None and item.items:
            return (self.value(path, text),), None
        if item.kind in ("set", "frozenset"):
            return self.set(path, item)
        numbers = numbers_of(item.items) if len(item.items) > NUMBERS else None
        if numbers is not None:
            return self.numbers(path, item, *numbers), None
        said = (self.value(path, f"{item.kind} of {len(item.items)}"),)
        return said, ((under(path, str(i)), one) for i, one in enumerate(item.items))

    def numbers(self, path: str, item: Sequence, dtype: str, data: bytes) -> Iterator[Part]:
        self.hold(len(data))
        yield self.value(f"{path or ROOT} (type)", f"{item.kind} of {len(item.items)} numbers")
        yield self.tensor(path, Tensor("", dtype, (len(item.items),), Memory(data)), len(data))

    def set(self, path: str, item: Sequence) -> Seen:
        """A set, whose order is noise; where it cannot be sorted, it is compared in the order of the file."""
        texts = sorted_texts(item.items, self.limits.header - self.held)
        if texts is None:
            said = self.value(path, f"{item.kind} of {len(item.items)}, in this order")
            return (said,), ((under(path, str(i)), one) for i, one in enumerate(item.items))
        return (self.value(path, f"{item.kind} of {len(texts)}: {self.listed(texts)}"),), None

    def mapping(self, path: str, item: Mapping) -> Seen:
        keys = [key for key, _ in item.items]
        return self.keyed(path, f"dict of {len(keys)}", keys), self.pairs(path, item.items)

    def keyed(self, path: str, what: str, keys: list[Item]) -> Iterator[Part]:
        yield self.value(path, what)
        if keys:
            yield self.value(f"{path or ROOT} (order of keys)", self.keys(keys))

    def keys(self, keys: list[Item]) -> str:
        """The keys in order, as text."""
        return self.listed(key_text(key, number) for number, key in enumerate(keys))

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

    def object(self, path: str, item: Object) -> Seen:
        """What would make an object, and what would be done to it."""
        simple = self.simple(item)
        if simple is not None:
            self.meet(item)
            return (self.value(path, simple),), None
        return self.described(path, item), self.below(path, item)

    def simple(self, item: Object) -> str | None:
        """A call with few short arguments and nothing after it, as one text."""
        if (
            item.changes
            or item.keywords is not None
            or not (item.function is None or isinstance(item.function, Global))
        ):
            return None
        given = exact(Sequence("tuple", item.arguments))
        return None if given is None else f"{item.how.value} {item.function or ''}{given}"

    def described(self, path: str, item: Object) -> Iterator[Part]:
        function = str(item.function) if isinstance(item.function, Global) else "(function)" if item.function else ""
        words = [f"{item.how.value} {function}".strip(), f"{len(item.arguments)} arguments"]
        if item.keywords is not None:
            words.append(f"{len(item.keywords.items)} keywords")
        yield self.value(path, ", ".join([*words, *changes_of(item)]))
        keys = [key for how, key, _ in item.changes if how == "set"]
        if keys:
            yield self.value(f"{path or ROOT} (order of keys)", self.keys(keys))
        state = next((value for how, _, value in item.changes if how == "state"), None)
        if isinstance(state, Mapping) and id(state) not in self.seen:
            yield self.value(f"{path or ROOT} (order of attributes)", self.keys([key for key, _ in state.items]))

    def below(self, path: str, item: Object) -> Iterator[Step]:
        if item.function is not None and not isinstance(item.function, Global):
            yield under(path, "(function)"), item.function
        for number, argument in enumerate(item.arguments):
            yield under(path, f"(arguments)/{number}"), argument
        if item.keywords is not None:
            yield under(path, "(keywords)"), item.keywords
        yield "", Made(item)
        yield from self.changes(path, item)

    def changes(self, path: str, item: Object) -> Iterator[Step]:
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
        """An object's attributes stand right below it, where they are a dict of its own."""
        if isinstance(value, Mapping) and number == 0 and self.first_seen(value, under(path, "(attributes)")) is None:
            yield from self.pairs(path, value.items)
        else:
            yield under(path, "(state)"), value


def unused(names: dict[str, int], name: str) -> str:
    """The name, or the name with the first number under which it is not taken; it is taken then."""
    found, number = name, names.get(name, 0)
    while found in names:
        number += 1
        found = f"{name} ({number + 1})"
    names[name] = number
    names.setdefault(found, 0)
    return found


def root_name(item: Item) -> str:
    """The class of an object; nothing for anything else, whose parts are named by their keys alone."""
    if isinstance(item, Object) and isinstance(item.function, Global) and item.how in (How.NEW, How.INSTANCE):
        return segment(item.function.name)
    return ""


def under(path: str, name: str) -> str:
    """The name of what stands below something."""
    return f"{path}/{name}" if path and name else path or name


def segment(key: Item) -> str:
    """One level of a name: short, and text that can be written anywhere."""
    text = key if isinstance(key, str) else exact(key) or ""
    if isinstance(key, bytes):
        text = key.decode("ascii", "backslashreplace")
    text = text[: LONGEST_SEGMENT + 1].encode("utf-8", "backslashreplace").decode("utf-8") or "''"
    return text if len(text) <= LONGEST_SEGMENT else f"{text[:LONGEST_SEGMENT]}..."


def key_text(key: Item, number: int) -> str:
    text = exact(key)
    return f"(key {number})" if text is None else text


def listed(texts: Iterable[str], most: int) -> str:
    """All of the texts, or some of them and the digest of all."""
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


def changes_of(item: Object) -> list[str]:
    """What is done to an object, in order, with how often."""
    words = {"state": "state", "append": "appended", "add": "added", "set": "set"}
    runs: list[tuple[str, int]] = []
    for how, _, _ in item.changes:
        if runs and runs[-1][0] == how:
            runs[-1] = (how, runs[-1][1] + 1)
        else:
            runs.append((how, 1))
    return [f"{count} {words[how]}" for how, count in runs]


def numbers_of(items: list[Item]) -> tuple[str, bytes] | None:
    """Many numbers of one type as the elements of a tensor."""
    kind = type(items[0])
    if kind not in (float, int) or any(type(item) is not kind for item in items):
        return None
    try:
        if kind is float:
            return "float64", struct.pack(f"<{len(items)}d", *items)
        return "int64", struct.pack(f"<{len(items)}q", *items)
    except struct.error:  # beyond 64 bits
        return None


def sorted_texts(items: list[Item], most: int) -> list[str] | None:
    """The elements of a set in one order; None where that is not clear, or where some of them are equal."""
    texts: list[str | None] = []
    for item in items:
        texts.append(exact(item))
        most -= len(texts[-1] or "")
        if most < 0:
            raise ArtifactDamaged("the elements of a set come to more than are read")
    known = [text for text in texts if text is not None]
    numbers = [item for item in items if isinstance(item, (int, float))]
    if len(known) < len(texts) or any(isinstance(item, Sequence) for item in items):
        return None if not only_tuples_of_text(items) else sorted_if_unlike(known)
    if any(isinstance(number, float) and math.isnan(number) for number in numbers):
        return None
    numbers.sort()
    if any(one == other for one, other in itertools.pairwise(numbers)):
        return None
    return sorted_if_unlike(known)


def sorted_if_unlike(texts: list[str]) -> list[str] | None:
    found = sorted(texts)
    return None if any(one == other for one, other in itertools.pairwise(found)) else found


def only_tuples_of_text(items: list[Item]) -> bool:
    """Whether all are short tuples of text, which are equal only when they are the same."""
    return all(
        isinstance(item, Sequence) and exact(item) is not None and all(type(one) is str for one in item.items)
        for item in items
    )
