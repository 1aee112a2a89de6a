"""Reads pickles by the standard library's unpickler, in which what would import or call is replaced by inert nodes.

The replacements build the nodes of pickle_nodes.py. An opcode that is not listed here is refused.
https://github.com/python/cpython/blob/main/Lib/pickletools.py describes each one.
"""

from __future__ import annotations

import _compat_pickle
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from reprokit.artifacts.decompression import AS_TEXT, UnpackedSource
from reprokit.artifacts.elements import Limits
from reprokit.artifacts.formats.pickle_nodes import (
    ATOM,
    Creation,
    GlobalName,
    Item,
    JoblibArray,
    LongString,
    OldString,
    PickledDict,
    PickledObject,
    PickledSet,
    calls_in_order,
)
from reprokit.artifacts.formats.pickle_numpy import NUMPY_DTYPE, array_type, cost_of
from reprokit.artifacts.sources import BytesSource, ForwardReader
from reprokit.errors import ArtifactDamaged

OPCODES_PER_PART = 8  # more opcodes than so many for each part allowed are not executed
LONGEST_NAME = 4000  # also of numbers in decimals, which take quadratic time
LONGEST_PLACE = 12  # digits of a place in the memo, which is a dict: larger numbers could all have one hash
CHANGEABLE = (list, PickledDict, PickledSet, PickledObject)


PYTHON_UNPICKLER: Any = pickle._Unpickler  # the one written in Python, whose handlers can be replaced one by one
AfterBuild: TypeAlias = "Callable[[PickledObject, InertUnpickler], PickledObject | JoblibArray]"
PersistentLoad: TypeAlias = "Callable[[Item], Item]"


class InertUnpickler(PYTHON_UNPICKLER):  # type: ignore[misc]
    """Builds nodes where pickle.Unpickler would import and call."""

    proto: int
    stack: list[Item]

    def __init__(
        self,
        stream: ForwardReader,
        limits: Limits,
        resolve: PersistentLoad | None = None,  # looks up what a persistent id means
        after_build: AfterBuild | None = None,  # may put something else in place of an object whose state was set
    ):
        super().__init__(stream, buffers=(self.created(Creation.BUFFER, None, (n,)) for n in itertools.count()))
        self.stream, self.limits, self.resolve, self.after_build = stream, limits, resolve, after_build
        self.start = self.stop = stream.at
        self.level = self.frames = 0
        self.opcodes = iter(range(OPCODES_PER_PART * limits.parts))  # that may still be executed
        self.calls: list[PickledObject] = []
        self.lost = 0  # calls whose results are thrown away
        self.revised = False  # something that a call may have seen was changed after it
        self.fetched: dict[int, int] = {}  # nodes that came out of the memo, with how many calls were made by then
        self.borrowed: dict[tuple[int, int], int] = {}  # those nodes by their place on the stack

    def load(self) -> Item:
        """Return the root of what the opcodes up to STOP build."""
        self.stream.room, self.stream.longest_line = self.limits.header, self.limits.text
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of unknown escapes in strings, which stay as they are
                root: Item = self._executed()
        except (ArtifactDamaged, OSError):
            raise
        except Exception as error:  # of whatever kind the handlers of the base class raise for nonsense
            self.fail(f"{type(error).__name__}: {ascii(str(error)[:80])[1:-1]}")
        self.stop = self.stream.at
        numbers = calls_in_order(root)
        self.lost = len(self.calls) - len(numbers)
        self.revised |= any(one > other for one, other in itertools.pairwise(numbers))
        return root

    def _executed(self) -> Any:
        self.read, self.readline = self.stream.read, self.stream.readline
        self.metastack: list[list[Item]] = []
        self.stack = []
        self.append = self.stack.append
        dispatch, read, stream, longest = self.dispatch, self.read, self.stream, self.limits.text
        for _ in self.opcodes:
            code = read(1)[0]
            if code == pickle.STOP[0]:
                return self.stack.pop()
            stream.longest_line = LONGEST_LINES.get(code, longest)
            dispatch[code](self)
            if code in FETCHING:
                self.note_fetched()
            elif code in CHANGING:
                self.note_changed()
        return self.fail(f"it has more than {OPCODES_PER_PART * self.limits.parts} opcodes")

    def nested(self) -> Item:
        """Return the object of another pickle, which stands in the midst of this one."""
        if self.level >= self.limits.depth:
            self.fail(f"pickles within pickles are nested more than {self.limits.depth} levels deep")
        inner = InertUnpickler(self.stream, self.limits)
        inner.level, inner.calls, inner.opcodes = self.level + 1, self.calls, self.opcodes
        root: Item = inner._executed()
        self.revised |= inner.revised
        return root

    def fail(self, what: str) -> NoReturn:
        raise ArtifactDamaged(f"the pickle is damaged or not supported before byte {self.stream.at}: {what}")

    # What the handlers of the base class call

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < 3:  # as the base class does for Python 2
            if (module, name) in _compat_pickle.NAME_MAPPING:
                module, name = _compat_pickle.NAME_MAPPING[module, name]
            else:
                module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        return GlobalName(module, name)

    def persistent_load(self, pid: Item) -> Item:
        found = self.resolve(pid) if self.resolve else None
        return found or self.created(Creation.PERSISTENT, None, (pid,))

    def get_extension(self, code: int) -> None:
        self.append(self.created(Creation.EXTENSION, None, (code,)))

    def _instantiate(self, klass: Item, args: list[Item]) -> None:
        self.append(self.created(Creation.INSTANCE, klass, tuple(args)))

    def _decode_string(self, value: bytes) -> Item:
        return OldString(value) if len(value) <= ATOM else LongString("string", BytesSource(value))

    # What the handlers below call

    def created(
        self, creation: Creation, function: Item, given: Item, keywords: PickledDict | None = None
    ) -> PickledObject:
        """Return an object in place of a call, which is never made."""
        if not isinstance(given, tuple):
            self.fail("the arguments of a call are no tuple")
        made = PickledObject(creation, function, given, keywords)
        if function != NUMPY_DTYPE:  # which has no effects but its result
            self.calls.append(made)
            made.number = len(self.calls)
        return made

    def note_fetched(self) -> None:
        """Remember that what is on top of the stack stands elsewhere, too."""
        item = self.stack[-1]
        if isinstance(item, CHANGEABLE):
            self.fetched.setdefault(id(item), len(self.calls))
            self.borrowed[len(self.metastack), len(self.stack)] = id(item)

    def note_changed(self) -> None:
        """Look whether a call may have seen what is on top of the stack, before it was changed."""
        seen = self.fetched.get(id(self.stack[-1]))
        if seen is not None and len(self.calls) > seen:
            self.revised = True
        if self.calls and self.borrowed.get((len(self.metastack), len(self.stack))) == id(self.stack[-1]):
            self.revised = True


Spelling: TypeAlias = "Callable[[InertUnpickler, tuple[Item, ...]], Item]"
Handler: TypeAlias = "Callable[[InertUnpickler], None]"
BASE: dict[int, Handler] = PYTHON_UNPICKLER.dispatch
# Opcodes of which the base class's handlers touch nothing but the stack, the memo, and what is on the stack.
KEPT = b"(012NIJKLMPGFSUC]acegh)ijlopqrstuQ\x80\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8c\x90\x93\x94\x97"
FETCHING = b"2hjg"  # push what is there already
CHANGING = b"aesu\x90"  # change what is then on top of the stack
LONGEST_LINES = {**dict.fromkeys(b"ILciP", LONGEST_NAME), **dict.fromkeys(b"gp", LONGEST_PLACE)}


DECODERS: dict[str, Callable[[bytes], Item]] = {
    "bytes": bytes,
    "string": OldString,
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "int": lambda data: int.from_bytes(data, "little", signed=True),
}


def string_of(kind: str, size: int) -> Handler:
    """Reads a string or number whose length comes first, in so many bytes; a long one stays in the file."""

    def load_string(self: InertUnpickler) -> None:
        length = int.from_bytes(self.read(size), "little")
        is_long = length > ATOM or kind not in DECODERS
        self.append(LongString(kind, self.stream.skip(length)) if is_long else DECODERS[kind](self.read(length)))

    return load_string


def load_unicode(self: InertUnpickler) -> None:
    BASE[pickle.UNICODE[0]](self)
    encoded = self.stack[-1].encode("utf-8", "surrogatepass")  # type: ignore[union-attr]
    if len(encoded) > ATOM:
        self.stack[-1] = LongString("str", BytesSource(encoded))


def load_dict(self: InertUnpickler) -> None:
    items = self.pop_mark()
    self.append(PickledDict(list(zip(items[::2], items[1::2], strict=True))))


def load_frozenset(self: InertUnpickler) -> None:
    items = self.pop_mark()  # which puts another append in place
    self.append(PickledSet("frozenset", items))


def load_newobj(self: InertUnpickler) -> None:
    given, class_ = self.stack.pop(), self.stack.pop()
    self.append(self.created(Creation.NEW, class_, given))


def load_newobj_ex(self: InertUnpickler) -> None:
    keywords, given, class_ = self.stack.pop(), self.stack.pop(), self.stack.pop()
    if not isinstance(keywords, PickledDict):
        self.fail("keyword arguments are no dict")
    self.append(self.created(Creation.NEW, class_, given, keywords if keywords.items else None))


def load_reduce(self: InertUnpickler) -> None:
    """A call; those by which lower protocols write what higher ones have opcodes for are such objects."""
    given, function = self.stack.pop(), self.stack.pop()
    known = SPELLINGS.get(function) if isinstance(function, GlobalName) else None
    found = known(self, given) if known and isinstance(given, tuple) else None
    self.append(self.created(Creation.CALL, function, given) if found is None else found)


def load_build(self: InertUnpickler) -> None:
    state, target = self.stack.pop(), self.stack[-1]
    if not isinstance(target, PickledObject):
        self.fail(f"a {type(target).__name__.lower()} has no state to set")
    target.changes.append(("state", None, state))
    self.note_changed()
    if target.function == NUMPY_DTYPE:
        self.stream.hold(cost_of(target))
        target.array_type = array_type(target)
        self.stream.hold(len(target.array_type.text) if target.array_type else 0)
    if self.after_build is not None:
        self.stack[-1] = self.after_build(target, self)


def load_frame(self: InertUnpickler) -> None:
    length = int.from_bytes(self.read(8), "little")
    if length > self.stream.source.size - self.stream.at:
        self.fail(f"a frame of {length} bytes goes beyond the end")
    self.frames += 1


def load_readonly_buffer(self: InertUnpickler) -> None:
    target = self.stack[-1]
    if isinstance(target, PickledObject) and target.creation is Creation.BUFFER:
        target.changes.append(("state", None, "read-only"))
    elif isinstance(target, LongString):
        self.stack[-1] = LongString(f"read-only {target.kind}", target.source)
    elif not isinstance(target, bytes):
        self.fail("no buffer is there to be made read-only")


# Calls by which lower protocols write what higher ones have opcodes for; None where they mean something else


def spelt_bytes(self: InertUnpickler, given: tuple[Item, ...]) -> Item:
    """_codecs.encode(text, "latin1")"""
    if len(given) != 2 or given[1] not in ("latin1", "latin-1"):
        return None
    text = given[0]
    if isinstance(text, LongString) and text.kind == "str":
        if text.as_bytes is None:
            data = UnpackedSource(text.source, AS_TEXT, self.limits)
            text.as_bytes = data.read(0, ATOM) if data.size <= ATOM else LongString("bytes", data)
            data.release()  # until it is compared
        return text.as_bytes  # type: ignore[no-any-return]
    self.stream.hold(len(text) if isinstance(text, str) else 0)
    return text.encode("latin-1") if isinstance(text, str) else None


def spelt_bytearray(self: InertUnpickler, given: tuple[Item, ...]) -> Item:
    """bytearray(b"..."), or bytearray("...", "latin-1") before protocol 3"""
    data = given[0] if len(given) == 1 else spelt_bytes(self, given) if given else b""
    if type(data) is bytes:
        return LongString("bytearray", BytesSource(data))
    is_long = isinstance(data, LongString) and data.kind == "bytes"
    return LongString("bytearray", data.source) if is_long else None  # type: ignore[union-attr]


def spelt_set(kind: str) -> Spelling:
    def spelt(self: InertUnpickler, given: tuple[Item, ...]) -> Item:
        if len(given) != 1 or not isinstance(given[0], list):
            return None
        self.stream.hold(8 * len(given[0]))
        return PickledSet(kind, list(given[0]))

    return spelt


def spelt_new(self: InertUnpickler, given: tuple[Item, ...]) -> Item:
    """copyreg.__newobj__(class, ...)"""
    self.stream.hold(8 * len(given))
    return self.created(Creation.NEW, given[0], given[1:]) if given else None


def spelt_old_new(self: InertUnpickler, given: tuple[Item, ...]) -> Item:
    """copyreg._reconstructor(class, object, None)"""
    if len(given) == 3 and given[1] == GlobalName("builtins", "object") and given[2] is None:
        return self.created(Creation.NEW, given[0], ())
    return None


SPELLINGS: dict[GlobalName, Spelling] = {
    GlobalName("_codecs", "encode"): spelt_bytes,
    GlobalName("builtins", "bytes"): lambda self, given: None if given else b"",
    GlobalName("builtins", "bytearray"): spelt_bytearray,
    GlobalName("builtins", "set"): spelt_set("set"),
    GlobalName("builtins", "frozenset"): spelt_set("frozenset"),
    GlobalName("copyreg", "__newobj__"): spelt_new,
    GlobalName("copyreg", "_reconstructor"): spelt_old_new,
}
InertUnpickler.dispatch = {
    **{code: BASE[code] for code in KEPT},
    b"b"[0]: load_build,
    b"V"[0]: load_unicode,
    b"T"[0]: string_of("string", 4),
    b"X"[0]: string_of("str", 4),
    b"\x8d"[0]: string_of("str", 8),
    b"B"[0]: string_of("bytes", 4),
    b"\x8e"[0]: string_of("bytes", 8),
    b"\x96"[0]: string_of("bytearray", 8),
    b"\x8b"[0]: string_of("int", 4),
    b"}"[0]: lambda self: self.append(PickledDict([])),
    b"d"[0]: load_dict,
    b"\x8f"[0]: lambda self: self.append(PickledSet("set", [])),
    b"\x91"[0]: load_frozenset,
    b"R"[0]: load_reduce,
    b"\x81"[0]: load_newobj,
    b"\x92"[0]: load_newobj_ex,
    b"\x95"[0]: load_frame,
    b"\x98"[0]: load_readonly_buffer,
}
