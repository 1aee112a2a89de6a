"""Runs the opcodes of a pickle, protocols 0 to 5, over inert nodes: no import, no call, no name looked up.

It does what CPython's Unpickler does to its stack and memo; https://github.com/python/cpython/blob/main/Lib/pickletools.py
describes each opcode. Long strings are not read but kept as a place in the file.
"""

from __future__ import annotations

import _compat_pickle
import codecs
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from reprokit.artifacts.formats.pickle_nodes import (
    ATOM,
    Global,
    How,
    Item,
    Mapping,
    Object,
    Octets,
    OldString,
    Sequence,
    latin1,
)
from reprokit.artifacts.parts import Limits, Source
from reprokit.artifacts.sources import Memory, piece
from reprokit.errors import ArtifactDamaged

BUFFERED = 1 << 16
HIGHEST_PROTOCOL = 5
OPCODES_PER_PART = 8  # more opcodes than so many for each part allowed are not run
DIGITS = 4000  # of a number written in decimals; reading them takes quadratic time


class Cursor:
    """Reads a source from front to back, a little ahead."""

    def __init__(self, source: Source, at: int = 0):
        self.source = source
        self._start = at
        self._buffer = b""
        self._next = 0

    @property
    def at(self) -> int:
        return self._start + self._next

    def take(self, length: int) -> bytes:
        """The next bytes, all of them there."""
        stop = self._next + length
        if stop > len(self._buffer):
            self._ahead(length)
            stop = length
        found = self._buffer[self._next : stop]
        self._next = stop
        return found

    def _ahead(self, length: int) -> None:
        at = self.at
        if at + length > self.source.size:
            raise ArtifactDamaged(f"the pickle ends at byte {self.source.size}, before byte {at + length}")
        self._buffer = self.source.read(at, max(length, BUFFERED))
        self._start, self._next = at, 0
        if len(self._buffer) < length:
            raise ArtifactDamaged(f"the pickle was cut short at byte {at + len(self._buffer)} while it was read")

    def line(self, limit: int) -> bytes:
        """The text up to the next end of line, without it."""
        end = self._buffer.find(b"\n", self._next)
        if end < 0:
            at = self.at
            self._buffer = self.source.read(at, BUFFERED)
            self._start, self._next = at, 0
            end = self._buffer.find(b"\n")
            if end < 0:
                return self._long_line(limit)
        found = self._buffer[self._next : end]
        self._next = end + 1
        return found

    def _long_line(self, limit: int) -> bytes:
        at = self.at
        found = self.source.read(at, limit)
        end = found.find(b"\n")
        if end < 0:
            short = len(found) < limit
            raise ArtifactDamaged(
                f"the pickle ends within the text at byte {at}" if short else f"the text at byte {at} is too long"
            )
        self.skip(end + 1)
        return found[:end]

    def skip(self, length: int) -> Source:
        """The next bytes as a source of their own."""
        at = self.at
        if length > self.source.size - at:
            raise ArtifactDamaged(
                f"{length} bytes are to follow byte {at} of the pickle, but {self.source.size - at} do"
            )
        self._buffer, self._start, self._next = b"", at + length, 0
        return piece(self.source, at, length)


@dataclass
class Calls:
    """What a pickle would have called, in this order."""

    made: list[Object] = field(default_factory=list)

    def add(self, called: Object) -> Object:
        self.made.append(called)
        called.number = len(self.made)
        return called


@dataclass(frozen=True)
class Pickle:
    """A pickle that was run to its end."""

    root: Item
    calls: Calls
    protocol: int
    frames: int
    revised: bool  # something that a call may have seen was changed after it
    start: int
    stop: int


AfterBuild = Callable[[Object, "Machine"], "Item"]
PersistentLoad = Callable[["Item"], "Item"]


class Machine:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self, cursor: Cursor, limits: Limits, after_build: AfterBuild | None = None, level: int = 0):
        """after_build may put something else in place of an object whose state was set."""
        self.cursor = cursor
        self.limits = limits
        self.after_build = after_build
        self.persistent_load: PersistentLoad | None = None  # looks up what a persistent id means
        self.level = level
        self.calls = Calls()
        self.stack: list[Item] = []
        self.marked: list[list[Item]] = []
        self.memo: dict[int, Item] = {}
        self.protocol = 0
        self.frames = 0
        self.buffers = 0
        self.revised = False
        self.fetched: dict[int, int] = {}  # nodes that came out of the memo, with how many calls were made by then
        self.held = 0
        self.room = 4 * cursor.source.size
        self.known: dict[int, tuple[Item, object]] = {}  # what was made out of nodes before
        self.started = cursor.at

    def run(self) -> Pickle:
        """All opcodes up to STOP, and what is then on top of the stack."""
        take, handlers = self.cursor.take, HANDLERS
        for _ in range(OPCODES_PER_PART * self.limits.parts):
            code = take(1)
            handler = handlers.get(code)
            if handler is not None:
                handler(self)
            elif code == b".":
                break
            else:
                self.fail(f"{code!r} is no opcode")
        else:
            self.fail(f"it has more than {OPCODES_PER_PART * self.limits.parts} opcodes")
        return Pickle(self.pop(), self.calls, self.protocol, self.frames, self.revised, self.started, self.cursor.at)

    def fail(self, what: str) -> NoReturn:
        raise ArtifactDamaged(f"the pickle is damaged or not supported before byte {self.cursor.at}: {what}")

    def pop(self) -> Item:
        if not self.stack:
            self.fail("the stack is empty")
        return self.stack.pop()

    def top(self) -> Item:
        if not self.stack:
            self.fail("the stack is empty")
        return self.stack[-1]

    def changed(self) -> Item:
        """What is on top of the stack and about to change."""
        target = self.top()
        if self.fetched.get(id(target), len(self.calls.made)) < len(self.calls.made):
            self.revised = True
        return target

    def fetch(self, item: Item) -> None:
        """Push something once more, which is there already."""
        if isinstance(item, (Sequence, Mapping, Object)):
            self.fetched.setdefault(id(item), len(self.calls.made))
        self.stack.append(item)

    def since_mark(self) -> list[Item]:
        if not self.marked:
            self.fail("there is no mark on the stack")
        found = self.stack
        self.stack = self.marked.pop()
        return found

    def number(self, length: int) -> int:
        return int.from_bytes(self.cursor.take(length), "little")

    def hold(self, length: int) -> None:
        """Count bytes that stay in memory."""
        self.held += length
        if self.held > self.limits.header:
            self.fail(f"its strings come to more than {self.limits.header} bytes")

    def unpack(self, length: int) -> None:
        """Count bytes that are read to be decoded, which the memo can bring again and again."""
        self.room -= length
        if self.room < 0:
            self.fail("the same text stands for bytes over and over")

    def text_line(self) -> bytes:
        line = self.cursor.line(self.limits.text)
        self.hold(len(line))
        return line


# Numbers


def integer_line(machine: Machine) -> None:
    line = machine.text_line()
    if line in (b"00", b"01"):
        machine.stack.append(line == b"01")
    else:
        machine.stack.append(decimal(machine, line, 0))


def long_line(machine: Machine) -> None:
    machine.stack.append(decimal(machine, machine.text_line().removesuffix(b"L"), 0))


def decimal(machine: Machine, digits: bytes, base: int) -> int:
    if len(digits) > DIGITS:
        machine.fail(f"a number has more than {DIGITS} digits")
    try:
        return int(digits.decode("ascii"), base)
    except ValueError:
        machine.fail(f"{digits[:40]!r} is no whole number")


def long_of(size: int) -> Callable[[Machine], None]:
    def binary_long(machine: Machine) -> None:
        length = int.from_bytes(machine.cursor.take(size), "little", signed=size == 4)
        if length < 0 or length > machine.limits.text:
            machine.fail(f"a number has {length} bytes")
        if length > ATOM:
            machine.stack.append(Octets("int", machine.cursor.skip(length)))
            return
        machine.hold(length)
        machine.stack.append(int.from_bytes(machine.cursor.take(length), "little", signed=True))

    return binary_long


def float_line(machine: Machine) -> None:
    line = machine.text_line()
    try:
        machine.stack.append(float(line.decode("ascii")))
    except ValueError:
        machine.fail(f"{line[:40]!r} is no number")


# Strings


def string_of(kind: str, size: int, signed: bool = False) -> Callable[[Machine], None]:
    """Reads a string whose length comes first, in so many bytes."""

    def string(machine: Machine) -> None:
        length = int.from_bytes(machine.cursor.take(size), "little", signed=signed)
        if length < 0:
            machine.fail(f"a string has {length} bytes")
        if length > ATOM or kind == "bytearray":
            machine.stack.append(Octets(kind, machine.cursor.skip(length)))
        else:
            machine.hold(length)
            machine.stack.append(atom(machine, kind, machine.cursor.take(length)))

    return string


def atom(machine: Machine, kind: str, data: bytes) -> Item:
    if kind == "bytes":
        return data
    if kind == "string":
        return OldString(data)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeError:
        machine.fail("a text is not in UTF-8")


def shortened(kind: str, data: bytes | str, text: Item) -> Item:
    """A string that was read already: a node when it is long."""
    encoded = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= ATOM else Octets(kind, Memory(encoded))


def string_line(machine: Machine) -> None:
    line = machine.text_line().strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        machine.fail("a string has no quotes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unknown escapes, which stay as they are
            data, _ = codecs.escape_decode(line[1:-1])
    except ValueError:
        machine.fail("a string has an escape that is none")
    assert isinstance(data, bytes)
    machine.stack.append(shortened("string", data, OldString(data)))


def unicode_line(machine: Machine) -> None:
    try:
        text = machine.text_line().decode("raw-unicode-escape")
    except UnicodeError:
        machine.fail("a text has an escape that is none")
    machine.stack.append(shortened("str", text, text))


# Containers


def empty(kind: str) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(Sequence(kind, []))


def marked(kind: str) -> Callable[[Machine], None]:
    def collect(machine: Machine) -> None:
        items = machine.since_mark()
        machine.stack.append(Sequence(kind, items))

    return collect


def tuple_of(length: int) -> Callable[[Machine], None]:
    def collect(machine: Machine) -> None:
        items = [machine.pop() for _ in range(length)]
        machine.stack.append(Sequence("tuple", items[::-1]))

    return collect


def marked_dict(machine: Machine) -> None:
    items = machine.since_mark()  # which puts another stack in place
    machine.stack.append(Mapping(pairs(machine, items)))


def pairs(machine: Machine, items: list[Item]) -> list[tuple[Item, Item]]:
    if len(items) % 2:
        machine.fail("a key has no value")
    return list(zip(items[::2], items[1::2], strict=True))


def append(machine: Machine) -> None:
    extend(machine, [machine.pop()], "append", "list")


def extend(machine: Machine, items: list[Item], how: str, kind: str) -> None:
    target = machine.changed()
    if isinstance(target, Sequence) and target.kind == kind:
        target.items.extend(items)
    elif isinstance(target, Object):
        target.changes.extend((how, None, item) for item in items)
    else:
        machine.fail(f"nothing can be added to a {type(target).__name__.lower()}")


def set_item(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    set_items(machine, [(key, value)])


def set_items(machine: Machine, items: list[tuple[Item, Item]]) -> None:
    target = machine.changed()
    if isinstance(target, Mapping):
        target.items.extend(items)
    elif isinstance(target, Object):
        target.changes.extend(("set", key, value) for key, value in items)
    else:
        machine.fail(f"no item can be set in a {type(target).__name__.lower()}")


# The stack and the memo


def mark(machine: Machine) -> None:
    machine.marked.append(machine.stack)
    machine.stack = []


def pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.since_mark()


def put(machine: Machine, index: int) -> None:
    if index < 0:
        machine.fail("a place of the memo is negative")
    machine.memo[index] = machine.top()


def get(machine: Machine, index: int) -> None:
    if index not in machine.memo:
        machine.fail(f"the memo holds nothing at {index}")
    machine.fetch(machine.memo[index])


def line_number(machine: Machine) -> int:
    return decimal(machine, machine.text_line(), 10)


# Names and calls


def named(machine: Machine, module: Item, name: Item) -> Global:
    if not isinstance(module, str) or not isinstance(name, str):
        machine.fail("a name is no text")
    if machine.protocol < 3:  # as Unpickler does with fix_imports
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        module = _compat_pickle.IMPORT_MAPPING.get(module, module)
    return Global(module, name)


def name_lines(machine: Machine) -> Global:
    try:
        module, name = (machine.text_line().decode("utf-8") for _ in range(2))
    except UnicodeError:
        machine.fail("a name is not in UTF-8")
    return named(machine, module, name)


def stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.stack.append(named(machine, module, name))


def arguments(machine: Machine, item: Item) -> list[Item]:
    if not isinstance(item, Sequence) or item.kind != "tuple":
        machine.fail("the arguments of a call are no tuple")
    return item.items


def instance(machine: Machine) -> None:
    function, given = name_lines(machine), machine.since_mark()
    machine.stack.append(machine.calls.add(Object(How.INSTANCE, function, given)))


def instance_of_stack(machine: Machine) -> None:
    items = machine.since_mark()
    if not items:
        machine.fail("an instance has no class")
    machine.stack.append(machine.calls.add(Object(How.INSTANCE, items[0], items[1:])))


def new_object(machine: Machine) -> None:
    given, function = machine.pop(), machine.pop()
    machine.stack.append(machine.calls.add(Object(How.NEW, function, arguments(machine, given))))


def new_object_with_keywords(machine: Machine) -> None:
    keywords, given, function = machine.pop(), machine.pop(), machine.pop()
    if not isinstance(keywords, Mapping):
        machine.fail("keyword arguments are no dict")
    found = Object(How.NEW, function, arguments(machine, given), keywords if keywords.items else None)
    machine.stack.append(machine.calls.add(found))


def reduce(machine: Machine) -> None:
    given, function = machine.pop(), machine.pop()
    machine.stack.append(called(machine, function, arguments(machine, given)))


def called(machine: Machine, function: Item, given: list[Item]) -> Item:
    """A call; those by which lower protocols write what higher ones have opcodes for are such objects."""
    spelling = SPELLINGS.get(str(function)) if isinstance(function, Global) else None
    found = spelling(machine, given) if spelling else None
    return found if found is not None else machine.calls.add(Object(How.CALL, function, given))


def spelt_bytes(machine: Machine, given: list[Item]) -> Item:
    """_codecs.encode(text, "latin1")"""
    if len(given) != 2 or given[1] not in ("latin1", "latin-1"):
        return None
    text = given[0]
    if isinstance(text, Octets) and text.kind == "str":
        machine.unpack(text.source.size)
        data = latin1(text.source)
        return data.read(0, ATOM) if data.size <= ATOM else Octets("bytes", data)
    if not isinstance(text, str):
        return None
    machine.hold(len(text))
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return None


def spelt_empty_bytes(machine: Machine, given: list[Item]) -> Item:
    return b"" if not given else None


def spelt_bytearray(machine: Machine, given: list[Item]) -> Item:
    """bytearray(b"..."), or bytearray("...", "latin-1") before protocol 3"""
    data = spelt_bytes(machine, given) if len(given) == 2 else (given[0] if len(given) == 1 else b"")
    if type(data) is bytes:
        return Octets("bytearray", Memory(data))
    if isinstance(data, Octets) and data.kind == "bytes":
        return Octets("bytearray", data.source)
    return None


def spelt_set(kind: str) -> Callable[[Machine, list[Item]], Item]:
    def spelt(machine: Machine, given: list[Item]) -> Item:
        if len(given) == 1 and isinstance(given[0], Sequence) and given[0].kind == "list":
            machine.hold(8 * len(given[0].items))
            return Sequence(kind, list(given[0].items))
        return None

    return spelt


def spelt_new(machine: Machine, given: list[Item]) -> Item:
    """copyreg.__newobj__(class, ...)"""
    machine.hold(8 * len(given))
    return machine.calls.add(Object(How.NEW, given[0], given[1:])) if given else None


def spelt_old_new(machine: Machine, given: list[Item]) -> Item:
    """copyreg._reconstructor(class, object, None)"""
    if len(given) == 3 and given[1] == Global("builtins", "object") and given[2] is None:
        return machine.calls.add(Object(How.NEW, given[0], []))
    return None


SPELLINGS: dict[str, Callable[[Machine, list[Item]], Item]] = {
    "_codecs.encode": spelt_bytes,
    "builtins.bytes": spelt_empty_bytes,
    "builtins.bytearray": spelt_bytearray,
    "builtins.set": spelt_set("set"),
    "builtins.frozenset": spelt_set("frozenset"),
    "copyreg.__newobj__": spelt_new,
    "copyreg._reconstructor": spelt_old_new,
}


def build(machine: Machine) -> None:
    state, target = machine.pop(), machine.changed()
    if not isinstance(target, Object):
        machine.fail(f"a {type(target).__name__.lower()} has no state to set")
    target.changes.append(("state", None, state))
    if machine.after_build is not None:
        machine.stack[-1] = machine.after_build(target, machine)


def persistent_line(machine: Machine) -> None:
    try:
        identity = machine.text_line().decode("ascii")
    except UnicodeError:
        machine.fail("a persistent id is not in ASCII")
    machine.stack.append(machine.calls.add(Object(How.PERSISTENT, None, [identity])))


def persistent(machine: Machine) -> None:
    identity = machine.pop()
    found = machine.persistent_load(identity) if machine.persistent_load else None
    machine.stack.append(found or machine.calls.add(Object(How.PERSISTENT, None, [identity])))


def extension(size: int) -> Callable[[Machine], None]:
    def push(machine: Machine) -> None:
        code = int.from_bytes(machine.cursor.take(size), "little", signed=size == 4)
        machine.stack.append(machine.calls.add(Object(How.EXTENSION, None, [code])))

    return push


def next_buffer(machine: Machine) -> None:
    machine.stack.append(machine.calls.add(Object(How.BUFFER, None, [machine.buffers])))
    machine.buffers += 1


def read_only_buffer(machine: Machine) -> None:
    target = machine.top()
    if isinstance(target, Object) and target.how is How.BUFFER:
        target.changes.append(("state", None, "read-only"))
    elif isinstance(target, Octets):
        machine.stack[-1] = Octets(f"read-only {target.kind}", target.source)
    elif not isinstance(target, bytes):
        machine.fail("no buffer is there to be made read-only")


# The stream


def protocol(machine: Machine) -> None:
    machine.protocol = machine.number(1)
    if machine.protocol > HIGHEST_PROTOCOL:
        machine.fail(f"protocol {machine.protocol} is newer than {HIGHEST_PROTOCOL}, the last one known")


def frame(machine: Machine) -> None:
    length = machine.number(8)
    if length > machine.cursor.source.size - machine.cursor.at:
        machine.fail(f"a frame of {length} bytes goes beyond the end")
    machine.frames += 1


def push_float(machine: Machine) -> None:
    machine.stack.append(struct.unpack(">d", machine.cursor.take(8))[0])


def constant(item: Item) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(item)


def whole_number(size: int, signed: bool = False) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(int.from_bytes(machine.cursor.take(size), "little", signed=signed))


HANDLERS: dict[bytes, Callable[[Machine], None]] = {
    b"(": mark,
    b"0": pop,
    b"1": lambda machine: machine.since_mark().clear(),
    b"2": lambda machine: machine.fetch(machine.top()),
    b"F": float_line,
    b"G": push_float,
    b"I": integer_line,
    b"J": whole_number(4, signed=True),
    b"K": whole_number(1),
    b"M": whole_number(2),
    b"L": long_line,
    b"\x8a": long_of(1),
    b"\x8b": long_of(4),
    b"N": constant(None),
    b"\x88": constant(True),
    b"\x89": constant(False),
    b"S": string_line,
    b"T": string_of("string", 4, signed=True),
    b"U": string_of("string", 1),
    b"V": unicode_line,
    b"X": string_of("str", 4),
    b"\x8c": string_of("str", 1),
    b"\x8d": string_of("str", 8),
    b"B": string_of("bytes", 4),
    b"C": string_of("bytes", 1),
    b"\x8e": string_of("bytes", 8),
    b"\x96": string_of("bytearray", 8),
    b"\x97": next_buffer,
    b"\x98": read_only_buffer,
    b"]": empty("list"),
    b"l": marked("list"),
    b")": empty("tuple"),
    b"t": marked("tuple"),
    b"\x85": tuple_of(1),
    b"\x86": tuple_of(2),
    b"\x87": tuple_of(3),
    b"\x8f": empty("set"),
    b"\x91": marked("frozenset"),
    b"}": lambda machine: machine.stack.append(Mapping([])),
    b"d": marked_dict,
    b"a": append,
    b"e": lambda machine: extend(machine, machine.since_mark(), "append", "list"),
    b"\x90": lambda machine: extend(machine, machine.since_mark(), "add", "set"),
    b"s": set_item,
    b"u": lambda machine: set_items(machine, pairs(machine, machine.since_mark())),
    b"p": lambda machine: put(machine, line_number(machine)),
    b"q": lambda machine: put(machine, machine.number(1)),
    b"r": lambda machine: put(machine, machine.number(4)),
    b"\x94": lambda machine: put(machine, len(machine.memo)),
    b"g": lambda machine: get(machine, line_number(machine)),
    b"h": lambda machine: get(machine, machine.number(1)),
    b"j": lambda machine: get(machine, machine.number(4)),
    b"c": lambda machine: machine.stack.append(name_lines(machine)),
    b"\x93": stack_global,
    b"R": reduce,
    b"b": build,
    b"i": instance,
    b"o": instance_of_stack,
    b"\x81": new_object,
    b"\x92": new_object_with_keywords,
    b"P": persistent_line,
    b"Q": persistent,
    b"\x82": extension(1),
    b"\x83": extension(2),
    b"\x84": extension(4),
    b"\x80": protocol,
    b"\x95": frame,
}
