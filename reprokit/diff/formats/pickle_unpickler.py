"""Reads pickles by the standard library's unpickler, with inert nodes instead of imports and calls.

The overridden handlers build the nodes of pickle_nodes.py. Opcodes that are not listed here are refused.
https://github.com/python/cpython/blob/main/Lib/pickletools.py describes each one.
"""

from __future__ import annotations

import _compat_pickle
import itertools
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.decompression import AS_TEXT, UnpackedSource
from reprokit.diff.elements import Limits, Part
from reprokit.diff.formats.pickle_nodes import (
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
from reprokit.diff.formats.pickle_numpy import NUMPY_DTYPE, array_type, cost_of
from reprokit.diff.formats.pickle_walk import PickleWalk, root_name, under
from reprokit.diff.sources import BytesSource, ForwardReader, piece

OPCODES_PER_PART = 8  # largest number of executed opcodes for each part that Limits allows
LONGEST_NAME = 4000  # also of decimal numbers, which take quadratic time
LONGEST_PLACE = 12  # digits of a memo index: larger numbers could be chosen to collide in the dict
CHANGEABLE = (list, PickledDict, PickledSet, PickledObject)


PYTHON_UNPICKLER: Any = pickle._Unpickler  # written in Python: its handlers can be overridden one by one
AfterBuild: TypeAlias = "Callable[[PickledObject, InertUnpickler], PickledObject | JoblibArray]"
PersistentLoad: TypeAlias = "Callable[[Item], Item]"


class InertUnpickler(PYTHON_UNPICKLER):  # type: ignore[misc]
    """Builds inert nodes where pickle.Unpickler would import or call."""

    proto: int
    stack: list[Item]

    def __init__(
        self,
        stream: ForwardReader,
        limits: Limits,
        resolve: PersistentLoad | None = None,  # resolves a persistent id
        after_build: AfterBuild | None = None,  # may replace an object after its state was set
    ):
        super().__init__(stream, buffers=(self.created(Creation.BUFFER, None, (n,)) for n in itertools.count()))
        self.stream, self.limits, self.resolve, self.after_build = stream, limits, resolve, after_build
        self.start = self.stop = stream.at
        self.level = self.frames = 0
        self.opcodes = iter(range(OPCODES_PER_PART * limits.parts))  # the remaining budget of opcodes
        self.calls: list[PickledObject] = []
        self.lost = 0  # calls whose results are discarded
        self.changed_after_call = False  # whether an object was changed after a call that may have seen it
        self.shared_nodes: dict[int, int] = {}  # nodes read from the memo, by id, with the number of calls before
        self.shared_slots: dict[tuple[int, int], int] = {}  # ids of these nodes by their slot on the stack

    def load(self) -> Item:
        """Execute the opcodes up to STOP; return the root node."""
        self.stream.room, self.stream.longest_line = self.limits.header, self.limits.text
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about unknown escapes in strings, which are kept
                root: Item = self._execute()
        except (ArtifactDamaged, OSError):
            raise
        except Exception as error:  # the handlers of the base class raise various errors for malformed data
            self.fail(f"{type(error).__name__}: {ascii(str(error)[:80])[1:-1]}")
        self.stop = self.stream.at
        numbers = calls_in_order(root)
        self.lost = len(self.calls) - len(numbers)
        self.changed_after_call |= any(number > next_number for number, next_number in itertools.pairwise(numbers))
        return root

    def parts(self, walk: PickleWalk, root: Item, path: str = "") -> Iterator[Part]:
        """Yield the parts of what was loaded; also all of its opcodes if the parts do not cover all of its effects."""
        yield from walk.tree(under(path, root_name(root)), root)
        if self.lost or self.changed_after_call:
            discarded = f"{self.lost} results of calls are thrown away"
            reason = discarded if self.lost else "objects change after calls that know them"
            yield walk.value(under(path, "(opcodes)"), reason)
            opcodes = piece(self.stream.source, self.start, self.stop - self.start)
            yield walk.blob(under(path, "(all opcodes)"), opcodes)
        frames = f", {self.frames} frames" if self.frames else ""
        yield walk.noise(under(path, "(protocol)"), f"{self.proto}{frames}")

    def _execute(self) -> Any:
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
            if code in PUSHING:
                self.note_shared()
            elif code in MUTATING:
                self.note_changed()
        return self.fail(f"it has more than {OPCODES_PER_PART * self.limits.parts} opcodes")

    def nested(self) -> Item:
        """Load a pickle nested within this one; return its root node."""
        if self.level >= self.limits.depth:
            self.fail(f"pickles within pickles are nested more than {self.limits.depth} levels deep")
        inner = InertUnpickler(self.stream, self.limits)
        inner.level, inner.calls, inner.opcodes = self.level + 1, self.calls, self.opcodes
        root: Item = inner._execute()
        self.changed_after_call |= inner.changed_after_call
        return root

    def fail(self, what: str) -> NoReturn:
        raise ArtifactDamaged(f"the pickle is damaged or not supported before byte {self.stream.at}: {what}")

    # Called by the handlers of the base class

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < 3:  # as the base class does for Python 2
            if (module, name) in _compat_pickle.NAME_MAPPING:
                module, name = _compat_pickle.NAME_MAPPING[module, name]
            else:
                module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        return GlobalName(module, name)

    def persistent_load(self, pid: Item) -> Item:
        resolved = self.resolve(pid) if self.resolve else None
        return resolved or self.created(Creation.PERSISTENT, None, (pid,))

    def get_extension(self, code: int) -> None:
        self.append(self.created(Creation.EXTENSION, None, (code,)))

    def _instantiate(self, klass: Item, args: list[Item]) -> None:
        self.append(self.created(Creation.INSTANCE, klass, tuple(args)))

    def _decode_string(self, value: bytes) -> Item:
        return OldString(value) if len(value) <= ATOM else LongString("string", BytesSource(value))

    # Called by the handlers below

    def created(
        self, creation: Creation, function: Item, arguments: Item, keywords: PickledDict | None = None
    ) -> PickledObject:
        """Return a node in place of a call, which is never executed."""
        if not isinstance(arguments, tuple):
            self.fail("the arguments of a call are no tuple")
        created_object = PickledObject(creation, function, arguments, keywords)
        if function != NUMPY_DTYPE:  # a call without side effects
            self.calls.append(created_object)
            created_object.number = len(self.calls)
        return created_object

    def note_shared(self) -> None:
        """Remember that the node on top of the stack has other references, too."""
        item = self.stack[-1]
        if isinstance(item, CHANGEABLE):
            self.shared_nodes.setdefault(id(item), len(self.calls))
            self.shared_slots[len(self.metastack), len(self.stack)] = id(item)

    def note_changed(self) -> None:
        """Check whether a call may have seen the node on top of the stack before this change."""
        calls_before = self.shared_nodes.get(id(self.stack[-1]))
        if calls_before is not None and len(self.calls) > calls_before:
            self.changed_after_call = True
        if self.calls and self.shared_slots.get((len(self.metastack), len(self.stack))) == id(self.stack[-1]):
            self.changed_after_call = True


Converter: TypeAlias = "Callable[[InertUnpickler, tuple[Item, ...]], Item]"
Handler: TypeAlias = "Callable[[InertUnpickler], None]"
BASE: dict[int, Handler] = PYTHON_UNPICKLER.dispatch
# Opcodes whose handlers in the base class only access the stack, the memo, and the nodes on the stack.
INHERITED = b"(012NIJKLMPGFSUC]acegh)ijlopqrstuQ\x80\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8c\x90\x93\x94\x97"
PUSHING = b"2hjg"  # push an existing node
MUTATING = b"aesu\x90"  # change the node that is then on top of the stack
LONGEST_LINES = {**dict.fromkeys(b"ILciP", LONGEST_NAME), **dict.fromkeys(b"gp", LONGEST_PLACE)}


DECODERS: dict[str, Callable[[bytes], Item]] = {
    "bytes": bytes,
    "string": OldString,
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
    "int": lambda data: int.from_bytes(data, "little", signed=True),
}


def string_loader(kind: str, size: int) -> Handler:
    """Return a handler for strings or numbers with a length prefix of `size` bytes; long ones stay in the file."""

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
    items = self.pop_mark()  # before self.append, which it replaces
    self.append(PickledSet("frozenset", items))


def load_newobj(self: InertUnpickler) -> None:
    arguments, class_ = self.stack.pop(), self.stack.pop()
    self.append(self.created(Creation.NEW, class_, arguments))


def load_newobj_ex(self: InertUnpickler) -> None:
    keywords, arguments, class_ = self.stack.pop(), self.stack.pop(), self.stack.pop()
    if not isinstance(keywords, PickledDict):
        self.fail("keyword arguments are no dict")
    self.append(self.created(Creation.NEW, class_, arguments, keywords if keywords.items else None))


def load_reduce(self: InertUnpickler) -> None:
    """Handle a call; calls by which lower protocols write builtin objects become these objects."""
    arguments, function = self.stack.pop(), self.stack.pop()
    convert = CONVERTERS.get(function) if isinstance(function, GlobalName) else None
    node = convert(self, arguments) if convert and isinstance(arguments, tuple) else None
    self.append(self.created(Creation.CALL, function, arguments) if node is None else node)


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


# Calls by which lower protocols write what higher ones have opcodes for; None: a call with another meaning


def convert_bytes(self: InertUnpickler, arguments: tuple[Item, ...]) -> Item:
    """_codecs.encode(text, "latin1")"""
    if len(arguments) != 2 or arguments[1] not in ("latin1", "latin-1"):
        return None
    text = arguments[0]
    if isinstance(text, LongString) and text.kind == "str":
        if text.as_bytes is None:
            data = UnpackedSource(text.source, AS_TEXT, self.limits)
            text.as_bytes = data.read(0, ATOM) if data.size <= ATOM else LongString("bytes", data)
            data.release()  # it is unpacked again for the comparison
        return text.as_bytes  # type: ignore[no-any-return]
    self.stream.hold(len(text) if isinstance(text, str) else 0)
    return text.encode("latin-1") if isinstance(text, str) else None


def convert_bytearray(self: InertUnpickler, arguments: tuple[Item, ...]) -> Item:
    """bytearray(b"..."), or bytearray("...", "latin-1") before protocol 3"""
    data = arguments[0] if len(arguments) == 1 else convert_bytes(self, arguments) if arguments else b""
    if type(data) is bytes:
        return LongString("bytearray", BytesSource(data))
    is_long = isinstance(data, LongString) and data.kind == "bytes"
    return LongString("bytearray", data.source) if is_long else None  # type: ignore[union-attr]


def set_converter(kind: str) -> Converter:
    def convert_set(self: InertUnpickler, arguments: tuple[Item, ...]) -> Item:
        if len(arguments) != 1 or not isinstance(arguments[0], list):
            return None
        self.stream.hold(8 * len(arguments[0]))
        return PickledSet(kind, list(arguments[0]))

    return convert_set


def convert_newobj(self: InertUnpickler, arguments: tuple[Item, ...]) -> Item:
    """copyreg.__newobj__(class, ...)"""
    self.stream.hold(8 * len(arguments))
    return self.created(Creation.NEW, arguments[0], arguments[1:]) if arguments else None


def convert_reconstructor(self: InertUnpickler, arguments: tuple[Item, ...]) -> Item:
    """copyreg._reconstructor(class, object, None)"""
    if len(arguments) == 3 and arguments[1] == GlobalName("builtins", "object") and arguments[2] is None:
        return self.created(Creation.NEW, arguments[0], ())
    return None


CONVERTERS: dict[GlobalName, Converter] = {
    GlobalName("_codecs", "encode"): convert_bytes,
    GlobalName("builtins", "bytes"): lambda self, arguments: None if arguments else b"",
    GlobalName("builtins", "bytearray"): convert_bytearray,
    GlobalName("builtins", "set"): set_converter("set"),
    GlobalName("builtins", "frozenset"): set_converter("frozenset"),
    GlobalName("copyreg", "__newobj__"): convert_newobj,
    GlobalName("copyreg", "_reconstructor"): convert_reconstructor,
}
InertUnpickler.dispatch = {
    **{code: BASE[code] for code in INHERITED},
    b"b"[0]: load_build,
    b"V"[0]: load_unicode,
    b"T"[0]: string_loader("string", 4),
    b"X"[0]: string_loader("str", 4),
    b"\x8d"[0]: string_loader("str", 8),
    b"B"[0]: string_loader("bytes", 4),
    b"\x8e"[0]: string_loader("bytes", 8),
    b"\x96"[0]: string_loader("bytearray", 8),
    b"\x8b"[0]: string_loader("int", 4),
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
