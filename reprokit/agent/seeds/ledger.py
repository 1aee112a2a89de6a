"""The ledger of seeding calls: each is recorded, and in a replay gets the recorded value if its own differs.

A seed that differs came from the clock, a process id, an address: not from the recorded entropy. In a replay, the n-th
call of a function at one line, in one thread and process, gets the value of the recording's n-th call. A value that
the recording has at this line, at another position, is left unchanged. Tasks of a pool are seeded by their number, in
whichever worker executes them.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import weakref
from _thread import _local

from ..core.agent import Log
from ..core.json_text import to_json
from ..core.signal_errors import pass_on
from ..core.thread_names import on_thread
from ..core.user_frames import INSTALLED, installed_package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any

    from ..core.agent import Agent
    from ..core.journal import Journal

    Text = Callable[[object], str]  # describes the arguments of a call with this seed
    Place = tuple[str, str, str, int]  # call, thread, file name, line
    Caller = tuple[str, str, int]  # thread ("" is the main one), file, line
    from collections.abc import Iterator

MAX_LINES = 1000  # recorded calls of one place; further ones are only counted
MAX_PLACES = 10_000
MAX_ARGUMENT = 200  # characters of a seed's description
MAX_FRAMES = 60  # a search over a pipeline, cross-validated, has some 40
_ON_BEHALF = frozenset(
    {"catboost", "lightgbm", "scipy", "sklearn", "xgboost"}
)  # they turn a random_state into a seed inside
_DISPATCH, _DISPATCH_NEXT = "dispatch_one_batch", "dispatch_next"  # of Parallel; joblib's threads call the latter
_CALLED_BY = "joblib"  # calls scikit-learn's functions on behalf of scikit-learn
_OWN = __name__.partition(".")[0]
_FROM_OUTSIDE = _OWN + ".patches.general"  # sets the launcher's seed, which is not the script's
_TRANSPARENT = _ON_BEHALF.union((_CALLED_BY, _OWN))
_ENSEMBLES = ("sklearn.ensemble._bagging", "sklearn.ensemble._forest")  # seeds of many parts, from one that is noted
_SEE_THROUGH = ("torch._compile", "torch._dynamo")  # they lie between a script and torch.manual_seed
BLOCK = 64 << 10
MAX_LINE = 32 << 10  # of one line; the launcher leaves longer ones out
MAX_BLOCKS = 256
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
MAX_TEXT = 16 << 10  # characters of one seed as JSON: a state of MT19937 is some 7,000
MAX_DEPTH = 8  # of lists within lists
_WORD = 1 << 63
_DTYPE = re.compile(r"[<>|][iufb][1248]")


class _SeedingThread(_local):
    """Whether a thread is within a seeding call (a thread-local)."""

    inside = False  # within a seeding call, which calls others


class SeedLedger(Log):
    """Records the seeding calls of this process, and in a replay chooses their values."""

    finish_order = 1

    def __init__(
        self, run: str, journal: Journal, warn: Callable[[str, str], None], packages: Iterable[str] = ()
    ) -> None:
        self._journal = journal
        self._frameworks = _ON_BEHALF.union(packages)
        self._recorded = RecordedSeeds(run)
        self._warn = warn
        self._thread = _SeedingThread()
        self._counts: dict[Place, int] = {}
        self._tasks = JoblibTasks()
        self._names: dict[str, str] = {}  # short names of files, by path

    def forget(self) -> None:
        """Drop the parent's counts, in a forked child."""
        self._counts.clear()
        self._tasks.forget()
        self._thread.inside = False

    def seed(self, call: str, requested: Any, caller: FrameType | None, text: Text | None = None) -> Any:
        """Return the value to seed with: the requested one, or in a replay the recorded one."""
        if requested is None or self._thread.inside or caller is None:
            return requested
        try:
            return self._seed(call, requested, caller, text or described)
        except Exception as error:
            self._warn(f"{call}: {type(error).__name__}: {error}", "seed-not-noted")
            pass_on(error)
            return requested

    def within(self, original: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a seeding function; seeding calls within it are not recorded."""
        thread = self._thread
        if thread.inside:
            return original(*arguments, **keywords)
        thread.inside = True
        try:
            return original(*arguments, **keywords)
        finally:
            thread.inside = False

    def _seed(self, call: str, seed: Any, caller: FrameType, text: Text) -> Any:
        origin = _origin(caller, self._frameworks)
        if origin is None:
            return seed
        thread, file, line = self._tasks.place(caller, origin, on_thread(""))
        place = (call, thread, self._names.get(file) or self._name(file), line)
        number = self._counts.get(place, 0)
        if not number and len(self._counts) >= MAX_PLACES:
            return seed
        self._counts[place] = number + 1
        return seed if number >= MAX_LINES else self._record(place, number, seed, text, bool(installed_package(file)))

    def _name(self, file: str) -> str:
        """Return the file's name without its directory; of a library's file, the path below site-packages."""
        name = file
        for part in (*INSTALLED, "/"):
            if part in file:
                name = file.rpartition(part)[2]
                break
        if len(self._names) < MAX_PLACES:
            self._names[file] = name
        return name

    def _record(self, place: Place, number: int, requested: Any, text: Text, from_library: bool) -> Any:
        """Write the line of one call; return the value to use."""
        where, used = f"{place[2]}:{place[3]}", requested
        fields = {"call": place[0], "argument": text(requested), "where": where, "thread": place[1]}
        try:
            fields["value"] = encode(requested)
        except NotExact:
            if from_library:  # that hands a generator on
                self._counts[place] = number
                return requested
        else:
            used = self._value_to_use(place, where, number, requested, fields["value"])
        if used is not requested:
            fields.update(argument=text(used), value=encode(used), asked=fields["argument"])
        if not place[1]:
            del fields["thread"]
        # Seeding by a library alone does not make a forked child write its final lines.
        self._journal.write("seed", fields, aside=from_library)
        return used

    def _value_to_use(self, place: Place, where: str, number: int, requested: Any, value: Any) -> Any:
        site = f"{to_json(place[0])},{to_json(where)},"
        start = f"[{to_json(self._journal.identity)},{to_json(place[1])},{number},{site}"
        requested_json = to_json(value)
        if self._recorded.agrees(start + requested_json):
            return requested
        recorded = self._recorded.value(start)
        if recorded is None or recorded == requested_json.encode():
            return requested
        is_elsewhere = self._recorded.holds(f",{site}{requested_json}") and not _is_process_id(requested)
        is_left = is_elsewhere or self._is_cut(place, site) or _on_command_line(requested)
        return requested if is_left else _decoded_like(recorded, requested)

    def _is_cut(self, place: Place, site: str) -> bool:
        """Return whether the recording holds only the first seeds of a place: a resumed run may ask for a later one."""
        last = f"[{to_json(self._journal.identity)},{to_json(place[1])},{MAX_LINES - 1},{site}"
        return self._recorded.value(last) is not None

    def finish(self) -> None:
        """Write the counts of places with more than MAX_LINES calls."""
        for place, count in list(self._counts.items()):
            if count > MAX_LINES:
                fields = {"call": place[0], "where": f"{place[2]}:{place[3]}", "thread": place[1], "count": count}
                self._journal.write("seed_count", fields)


def seeds_of(agent: Agent) -> SeedLedger:
    """Return the ledger of this process; create it on first use."""
    return agent.log_of(SeedLedger, _make_ledger)


def _make_ledger(agent: Agent) -> SeedLedger:
    # Not the standard library, in whose threads joblib seeds as the script would.
    packages = [name.partition(".")[0] for name, adapter in agent.adapters.watched.items() if adapter != "orders"]
    return SeedLedger(agent.run, agent.journal, agent.warn, packages)


def seeding(
    ledger: SeedLedger, call: str, original: Callable[..., Any], keyword: str = "seed", depth: int = 1
) -> Callable[..., Any]:
    """Wrap a function whose first argument is a seed: record it, and call the function with the value to use."""

    def seed(*arguments: Any, **keywords: Any) -> Any:
        requested = arguments[0] if arguments else keywords.get(keyword)
        text: Text = lambda value: _arguments(value, arguments, keywords, keyword)  # noqa: E731
        used = ledger.seed(call, requested, _calling_script(sys._getframe(depth)), text)
        if used is not requested and arguments:
            arguments = (used, *arguments[1:])
        elif used is not requested:
            keywords[keyword] = used
        return ledger.within(original, arguments, keywords)

    return seed


def seeding_method(ledger: SeedLedger, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that takes only a seed, in the same way."""

    def seed(owner: Any, *arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == 1:
            arguments = (ledger.seed(call, arguments[0], sys._getframe(1)),)
        elif "seed" in keywords:
            keywords["seed"] = ledger.seed(call, keywords["seed"], sys._getframe(1))
        return original(owner, *arguments, **keywords)

    return seed


def described(value: object) -> str:
    """Return the value as text that is the same in each run: without addresses."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"<int of {value.bit_length()} bits>"
    if isinstance(value, (str, bytes, bytearray)):
        value = value[:MAX_ARGUMENT]
    text = repr(value)
    return f"<{type(value).__qualname__}>" if " at 0x" in text else text[:MAX_ARGUMENT]


def _arguments(value: object, arguments: tuple[Any, ...], keywords: dict[str, Any], keyword: str) -> str:
    """Return the arguments of a call as text, with this value as the seed."""
    named = keywords if arguments else {**keywords, keyword: value}
    parts = [described(part) for part in ((value, *arguments[1:]) if arguments else ())]
    return ", ".join(parts + [f"{key}={described(named[key])}" for key in named])[:MAX_ARGUMENT]


def _origin(caller: FrameType, frameworks: frozenset[str]) -> FrameType | None:
    """Return the frame that seeds: the caller, or the script behind it; None for a library's seeds of many parts."""
    while _package(caller) == _OWN and caller.f_back is not None:  # another adapter stands in between
        if caller.f_globals.get("__name__") == _FROM_OUTSIDE:
            return None
        caller = caller.f_back
    if _package(caller) not in _ON_BEHALF:
        return caller
    frame: FrameType | None = caller
    called = False
    for _ in range(MAX_FRAMES):
        if frame is None or _package(frame) not in _TRANSPARENT:
            break
        if called and frame.f_globals.get("__name__") in _ENSEMBLES:
            return None
        called = called or _package(frame) == _CALLED_BY
        frame = frame.f_back
    return frame if frame is not None and _is_script(frame, frameworks) else None


def _is_script(frame: FrameType, frameworks: frozenset[str]) -> bool:
    """Return whether a frame is neither a library's nor an import's."""
    file = frame.f_code.co_filename
    return not (installed_package(file) or file.startswith("<frozen") or _package(frame) in frameworks)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _calling_script(caller: FrameType) -> FrameType:
    while str(caller.f_globals.get("__name__", "")).startswith(_SEE_THROUGH) and caller.f_back is not None:
        caller = caller.f_back
    return caller


def _is_process_id(seed: Any) -> bool:
    """Return whether a seed is this process's id, which in a container another recorded process may have had."""
    return type(seed) is int and seed == os.getpid()


def _on_command_line(seed: Any) -> bool:
    """Return whether the command line contains this seed: a replay may have another command."""
    text = seed if isinstance(seed, str) else described(seed)
    return any(text == part or part.endswith("=" + text) for part in getattr(sys, "argv", ()))


def _decoded_like(recorded: bytes, requested: Any) -> Any:
    """Return the recorded value if it has the same type, as another might be rejected; else the requested one."""
    import json

    value = decode(json.loads(recorded))
    return value if type(value) is type(requested) else requested


class JoblibTasks:
    """Assigns seeding calls within joblib's tasks to the thread and line that they belong to."""

    def __init__(self) -> None:
        self._places: Any = weakref.WeakKeyDictionary()  # of the first task, by joblib.Parallel object

    def forget(self) -> None:
        """Drop the parent's places, in a forked child."""
        self._places.clear()

    def place(self, caller: FrameType, origin: FrameType, thread: str) -> Caller:
        """Return thread, file and line that a seeding call is assigned to: its origin's, unless joblib runs it."""
        own_place = (thread, origin.f_code.co_filename, origin.f_lineno or 0)
        if "joblib.parallel" not in sys.modules:
            return own_place
        frame, is_inside = _dispatching_frame(caller, origin)
        if frame is None:
            return own_place
        parallel, dispatcher = frame.f_locals["self"], frame.f_back
        if dispatcher is None or dispatcher.f_code.co_name != _DISPATCH_NEXT:
            self._places[parallel] = own_place
            return own_place
        first_place: Caller = self._places.get(parallel, own_place)
        return (first_place[0], *own_place[1:]) if is_inside else first_place


def _dispatching_frame(caller: FrameType, origin: FrameType) -> tuple[FrameType | None, bool]:
    """Return the frame in which joblib takes a task, if it calls the caller, and whether ``origin`` is within it."""
    frame: FrameType | None = caller
    is_inside = False
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == _DISPATCH and frame.f_globals.get("__name__") == "joblib.parallel":
            return frame, is_inside
        is_inside = is_inside or frame is origin
        frame = frame.f_back
    return None, False


class RecordedSeeds:
    """The recorded seeds: seeds.jsonl of this run, which only a replay has."""

    def __init__(self, run: str) -> None:
        self._absent = False
        self._path = run + "/seeds.jsonl"
        self._block = 0  # number of the block with the last line found: the next one is near
        self._buffer: bytearray | None = None

    def agrees(self, line: str) -> bool:
        """Return whether the recording has this line (given without its closing bracket), or there is no recording."""
        needle = b"\n" + line.encode() + b"]\n"
        if self._buffer is None:
            self._buffer = bytearray(BLOCK + MAX_LINE)
            self._absent = not os.access(self._path, os.F_OK)
            self._path = self._path[:-12] + ("/./shim.plan" if self._absent else "/seeds.jsonl")
        try:
            descriptor = os.open(self._path, _FLAGS)
        except OSError:
            return self._absent
        try:
            size = os.preadv(descriptor, [self._buffer], self._block * BLOCK)
            is_recorded = self._buffer.count(needle, 0, size) > 0  # find() may allocate an int, or not
            return self._absent or is_recorded
        finally:
            os.close(descriptor)

    def value(self, start: str) -> bytes | None:
        """Return the rest of the line with this beginning, up to its closing bracket; None if there is none."""
        needle = b"\n" + start.encode()
        for number, block in self._blocks():
            position = block.find(needle)
            end = block.find(b"]\n", position + len(needle)) if position >= 0 else -1
            if end >= 0:
                self._block = number
                return block[position + len(needle) : end]
        return None

    def holds(self, end: str) -> bool:
        """Return whether any line has this end, before its closing bracket."""
        needle = end.encode() + b"]\n"
        return any(needle in block for _, block in self._blocks())

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks from the last one used on, then from the start; each overlaps the next by MAX_LINE bytes."""
        if self._absent:
            return
        try:
            descriptor = os.open(self._path, _FLAGS)
        except OSError:
            self._absent = True
            return
        try:
            first = self._block
            yield from _read(descriptor, range(first, MAX_BLOCKS))
            yield from _read(descriptor, range(first))
        finally:
            os.close(descriptor)


def _read(descriptor: int, numbers: range) -> Iterator[tuple[int, bytes]]:
    for number in numbers:
        block = os.pread(descriptor, BLOCK + MAX_LINE, number * BLOCK)
        if not block:
            return
        yield number, block


class NotExact(Exception):
    """A value cannot be encoded as JSON exactly."""


def encode(value: object) -> Any:
    """Return the value as JSON; raises NotExact for anything but numbers, texts, bytes, and lists of these."""
    return _encode(value, _SizeLimit())


class _SizeLimit:
    """The characters left of MAX_TEXT, so that a huge value is rejected before it is formatted."""

    def __init__(self) -> None:
        self.left = MAX_TEXT

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise NotExact("too long")


def _encode(value: Any, limit: _SizeLimit, depth: int = 0) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        limit.take(6)
        return value
    if kind is int:
        return _encode_int(value, limit)
    if kind is float:
        limit.take(32)
        return {"float": struct.pack(">d", value).hex()}
    if kind is str:
        limit.take(8 + 12 * len(value) if not value.isascii() else 8 + 6 * len(value))
        return {"text": value.encode("utf-8", "surrogatepass").hex()} if _has_surrogate(value) else value
    if kind in (bytes, bytearray):
        limit.take(32 + 2 * len(value))
        return {kind.__name__: value.hex()}
    if kind in (list, tuple):
        return _encode_list(value, limit, depth)
    return _encode_numpy(value, limit)


def _encode_int(value: int, limit: _SizeLimit) -> Any:
    if -_WORD <= value < _WORD:
        limit.take(21)
        return value
    limit.take(16 + value.bit_length() // 4)
    return {"int": hex(value)}


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _encode_list(value: Any, limit: _SizeLimit, depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise NotExact("too deep")
    limit.take(12 + len(value))
    items = [_encode(item, limit, depth + 1) for item in value]
    return items if type(value) is list else {"tuple": items}


def _encode_numpy(value: Any, limit: _SizeLimit) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        raise NotExact(f"a {type(value).__qualname__}")
    if not _DTYPE.fullmatch(value.dtype.str):
        raise NotExact(f"of type {value.dtype}")
    limit.take(64 + 2 * value.nbytes + 21 * value.ndim)
    fields = {"dtype": value.dtype.str, "bytes": value.tobytes().hex()}
    return {**fields, "shape": list(value.shape)} if type(value) is numpy.ndarray else fields


def decode(content: Any, depth: int = 0) -> Any:
    """Return the value that was encoded; raises an error for invalid content."""
    if content is None or isinstance(content, (bool, int, str)):
        return content
    if depth > MAX_DEPTH:
        raise ValueError("lists too deep")
    if isinstance(content, list):
        return [decode(item, depth + 1) for item in content]
    if "dtype" in content:
        return _decode_numpy(content)
    ((kind, body),) = content.items()
    return _DECODERS[kind](body, depth)


_DECODERS: dict[str, Any] = {
    "int": lambda body, depth: int(body, 16),
    "float": lambda body, depth: struct.unpack(">d", bytes.fromhex(body))[0],
    "text": lambda body, depth: bytes.fromhex(body).decode("utf-8", "surrogatepass"),
    "bytes": lambda body, depth: bytes.fromhex(body),
    "bytearray": lambda body, depth: bytearray.fromhex(body),
    "tuple": lambda body, depth: tuple(decode(item, depth + 1) for item in body),
}


def _decode_numpy(content: Any) -> Any:
    numpy = sys.modules["numpy"]
    if not _DTYPE.fullmatch(content["dtype"]):
        raise ValueError("no type of a number")
    array = numpy.frombuffer(bytes.fromhex(content["bytes"]), dtype=content["dtype"])
    if "shape" in content:
        return array.reshape([int(size) for size in content["shape"]]).copy()
    return array[0]
