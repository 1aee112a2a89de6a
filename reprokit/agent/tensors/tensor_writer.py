"""Saves values of tensors in a folder of the run directory: shards, and an index of one line a value (docs/format.md).

The native library copies values into a buffer immediately; a thread of its own, unknown to libc, writes them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from _thread import allocate_lock
from functools import partial
from time import monotonic
from types import MappingProxyType

from ..capture.store import COMPLEX, DTYPES, SIZES
from ..core import trail_library
from ..core.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..core.agent import Agent
    from .tensor_rules import Choice

FORMAT = 1
DIRECTORY = "tensors"  # in the run directory
SOON, LATE = 4 << 20, 1.0  # bytes that are handed over at the end of a step; or everything, after these seconds
COPIED, HAND_OVER, TOO_LARGE, ENDED = range(4)  # enum rkt_put of native/trail/tensors.c
_PLAIN = ("min", "max", "sum", "mean", "variance", "std", "prod", "l1", "l2")  # enum rkt_reduction
REDUCTIONS = {name: place for place, name in enumerate([*_PLAIN, *(f"abs_{name}" for name in _PLAIN)])}
_VALUE = struct.Struct("<4Q")  # struct rkt_value of native/trail/tensors.c
_ARRAY = struct.Struct("<3Q")  # struct rkt_array of native/trail/trail.h
_AS_PARTS = {"complex128": ("F64", (2,)), "complex32": ("F16", (2,))}  # dtypes that safetensors lacks
_REASONS = {28: "disk-full", 122: "disk-full", 27: "disk-full"}  # ENOSPC, EDQUOT, EFBIG


class NumberArray:
    """Floating-point numbers in memory that can be reduced: float32 or float64."""

    def __init__(self, address: int, count: int, is_double: bool, owner: Any) -> None:
        self.address, self.count, self.is_double = address, count, is_double
        self.owner = owner  # kept alive until the numbers are read


class TensorLibrary:
    """The functions of the trail's native library that save tensors."""

    def __init__(self, path: str) -> None:
        number, word, pointer, text = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_char_p
        function = partial(trail_library.function, ctypes.CDLL(path))
        self.saver = function("saver", pointer, text, text, text, number, ctypes.POINTER(ctypes.c_int))
        self.saver_path = function("saver_path", text, pointer)
        self.put = function("put", word, pointer, number, number)
        self.is_copy = function("is_copy", word, pointer, number, number, number)
        self.shard = function("shard", word, pointer, text, number, text, number, text, number, number)
        self.settle = function("settle", word, pointer)
        self.lines = function("lines", word, pointer, text, number)
        self._reduce = function("reduce", None, text, number, word, ctypes.POINTER(ctypes.c_double))

    def reduce(self, numbers: NumberArray, names: Iterable[str]) -> list[float]:
        """Return len(REDUCTIONS) numbers, none if there is nothing to reduce; those of other names have no meaning."""
        results = (ctypes.c_double * len(REDUCTIONS))()
        self._reduce(_ARRAY.pack(numbers.address, numbers.count, numbers.is_double), 1, bits_of(names), results)
        return results[:] if numbers.count else []


def bits_of(names: Iterable[str]) -> int:
    """Return a bit for each of these reductions."""
    return sum(1 << REDUCTIONS[name] for name in set(names))


class ValueLine:
    """What the lines of a tensor's values have in common, while its choice, dtype and shape are the same."""

    def __init__(self, name: str, mode: str, call: int, choice: Choice, spelling: tuple[str, str, int]) -> None:
        self.name, self.mode, self.choice, self.spelling = name, mode, choice, spelling
        self.text = f',"mode":"{mode}","name":{to_json(name)},"call":{call},{spelling[1]}'  # behind the step
        self.reductions = [(f'"{reduction}":', REDUCTIONS[reduction]) for reduction in choice.reductions]


class SavedCopy:
    """The bytes of a value in the shard that is being filled."""

    def __init__(self, key: int, offset: int) -> None:
        self.key, self.offset = key, offset
        self.place = 0  # of the digest in the lines, once there is one


class SavePlan:
    """The lines of tensors that are saved together at each update, for as long as choices and layouts are the same."""

    def __init__(self, choices: list[tuple[str, Choice]], layouts: bytes, lines: list[ValueLine]) -> None:
        self.choices, self.layouts, self.lines = choices, layouts, lines
        self.calls = {(line.name, line.mode): 1 for line in lines}
        self.wanted = bits_of([name for _, choice in choices for name in choice.reductions])


class TensorWriter:
    """Writes the tensors of this process; opens its files when the first one arrives."""

    def __init__(self, agent: Agent, framework: str, buffer: int, directory: str = DIRECTORY) -> None:
        self._agent, self._framework, self._buffer, self._directory = agent, framework, buffer, directory
        os.register_at_fork(before=self._settle)
        self.forget()

    def forget(self) -> None:
        """Start without files; in a forked child, those in use are the parent's."""
        self._lock = allocate_lock()  # a new one: another thread may have held it at the fork
        self._library: TensorLibrary | None = None
        self._saver = 0
        self._shard = 0
        self._head_entries: list[str] = []
        self._values: list[bytes] = []
        self._copies: dict[Any, SavedCopy] = {}  # by memory and spelling
        self._lines: list[str] = []
        self._length = self._offset = 0
        self._handed_over = monotonic()
        self._declared: set[str] = set()
        self._dropped: set[tuple[str, str]] = set()
        self._kinds: dict[Any, tuple[str, str, int]] = {}  # by dtype and shape
        self.has_ended = False

    def _begin(self) -> TensorLibrary:
        path = trail_library.path_of(self._agent.run)
        if path is None:
            raise RuntimeError(f"no {self._directory} are saved, as the library for it is not there")
        library, error = TensorLibrary(path), ctypes.c_int()
        identity = self._agent.journal.identity
        rank = identity.partition("/")[0].rpartition("rank")[2] if identity.startswith("rank") else ""
        first = {"format": FORMAT, "process": identity, "rank": rank, "framework": self._framework}
        directory, text = os.fsencode(f"{self._agent.run}/{self._directory}"), to_json(first).encode() + b"\n"
        self._saver = library.saver(directory, identity.encode(), text, self._buffer, ctypes.byref(error)) or 0
        if not self._saver:
            raise OSError(error.value, f"no {self._directory} are saved, as their files cannot be written")
        self._library = library
        return library

    def declare(self, name: str, collections: Sequence[str], facts: Callable[[], Mapping[str, object]]) -> None:
        """Write, once, a tensor's collections and facts."""
        if name not in self._declared:
            self._declared.add(name)
            self._line({"tensor": name, "collections": list(collections), **facts()})

    def has_declared(self, name: str) -> bool:
        """Return whether a tensor of this name has been declared."""
        return name in self._declared

    def put(
        self, value_key: tuple[int, str, str, int], choice: Choice, dtype: str, shape: tuple[int, ...],
        memory: tuple[int, int], numbers: Callable[[], NumberArray],
    ) -> None:  # fmt: skip
        """Save a value that lies in memory, given as its address and its size in bytes."""
        if self.has_ended:
            return
        with self._lock:
            step, mode, name, call = value_key
            line, results = self.line(name, mode, call, choice, dtype, shape), []
            library = self._library or self._begin()
            if choice.reductions:
                results = library.reduce(numbers(), choice.reductions)
            self._put_line(step, line, memory, results)

    def put_again(self, step: int, plan: SavePlan, arrays: bytes, reduce: Callable[[bytes, int], list[float]]) -> None:
        """Save values by a plan that fits them; each is given as a struct rkt_array."""
        if self.has_ended:
            return
        with self._lock:
            if self._library is None:
                self._begin()
            results = reduce(arrays, plan.wanted) if plan.wanted else []
            first = 0
            for line, (address, count, is_double) in zip(plan.lines, _ARRAY.iter_unpack(arrays)):
                self._put_line(step, line, (address, count * (8 if is_double else 4)), results, first)
                first += len(REDUCTIONS)

    def line(self, name: str, mode: str, call: int, choice: Choice, dtype: str, shape: tuple[int, ...]) -> ValueLine:
        """Return what the lines of a tensor's values have in common."""
        return ValueLine(name, mode, call, choice, self._kinds.get((dtype, shape)) or self._kind(dtype, shape))

    def _put_line(
        self, step: int, line: ValueLine, memory: tuple[int, int], results: Sequence[float], first: int = 0
    ) -> None:
        text = f'{{"step":{step}{line.text}'
        if line.reductions:
            reduced = [f"{name}{_number(results[first + place])}" for name, place in line.reductions if results]
            self._add(f'{text},"reductions":{{{",".join(reduced)}}}}}\n')
        if line.choice.is_full and not line.spelling[0]:
            self._drop(step, line.mode, line.name, "unreadable")
        elif line.choice.is_full:
            self._copy(text, line.spelling, memory)

    def _kind(self, dtype: str, shape: tuple[int, ...]) -> tuple[str, str, int]:
        """Return parts of a shard's header and of an index line for a dtype and shape, and their salt for digests."""
        spelled, extra_axis = _AS_PARTS.get(dtype, (DTYPES.get(dtype, ""), ()))
        is_supported = spelled in SIZES and spelled != COMPLEX
        head = (
            f'{{"dtype":"{spelled}","shape":{to_json([*shape, *extra_axis])},"data_offsets":[' if is_supported else ""
        )
        kind = f'"dtype":{to_json(dtype)},"shape":{to_json(list(shape))}'
        spelling = self._kinds[(dtype, shape)] = head, kind, trail_library.salt(dtype, shape)
        return spelling

    def _copy(self, line: str, spelling: tuple[str, str, int], memory: tuple[int, int]) -> None:
        address, size = memory
        assert self._library is not None
        # Often the next module's input, which the bytes tell.
        earlier = self._copies.get((memory, spelling))
        if earlier is not None and self._library.is_copy(self._saver, address, size, earlier.offset):
            self._add_value(line, 0, spelling, earlier)
            return
        answer = self._library.put(self._saver, address, size)
        if answer == HAND_OVER:
            self._hand_over()
            answer = self._library.put(self._saver, address, size)
        if answer == ENDED:
            self._end()
            return
        copy = self._copies[memory, spelling] = SavedCopy(len(self._head_entries), self._offset)
        self._head_entries.append(f'"{copy.key}":{spelling[0]}{self._offset},{self._offset + size}]}}')
        self._add_value(line, size, spelling, copy)
        self._offset += size
        if answer == TOO_LARGE:
            self._hand_over(address)

    def _add_value(self, line: str, size: int, spelling: tuple[str, str, int], copy: SavedCopy) -> None:
        """Add the line of a value whose bytes are in the current shard, without a digest so far."""
        start = f'{line},"shard":{self._shard},"key":"{copy.key}","digest":"'
        place = self._length + len(start)
        self._values.append(_VALUE.pack(size, spelling[2], place, copy.place))
        copy.place = copy.place or place
        self._add(f'{start}{"0" * 16}"}}\n')

    def _add(self, text: str) -> None:
        self._lines.append(text)
        self._length += len(text)

    def _line(self, fields: Mapping[str, object]) -> None:
        self._add(to_json(fields) + "\n")

    def drop(self, step: int, mode: str, name: str, reason: str) -> None:
        """Record, once per reason, that a tensor is not saved."""
        with self._lock:
            self._drop(step, mode, name, reason)

    def _drop(self, step: int, mode: str, name: str, reason: str) -> None:
        if (name, reason) not in self._dropped:
            self._dropped.add((name, reason))
            self._line({"dropped": step, "mode": mode, "why": reason, "name": name})

    def end_step(self, step: int, modes: Sequence[str]) -> None:
        """Record that all values of a step are written."""
        if self.has_ended:
            return
        with self._lock:
            for mode in modes:
                self._add(f'{{"passed":{step},"mode":"{mode}"}}\n')
            if self._library is None:
                self._begin()
            if self._offset >= SOON or monotonic() - self._handed_over > LATE:
                self._hand_over()

    def path(self) -> str:
        """Return the path of the files, without an ending; opens them."""
        library = self._library or self._begin()
        return os.fsdecode(library.saver_path(self._saver))

    def complete(self, line: Mapping[str, object]) -> int:
        """Write a line, and hand it over with all values so far; return the number of the next shard.

        The line is only written behind its values.
        """
        with self._lock:
            self._line(line)
            self._hand_over()
            return self._shard

    def _hand_over(self, address: int = 0) -> None:
        assert self._library is not None
        head, text = ("{" + ",".join(self._head_entries) + "}").encode(), "".join(self._lines).encode()
        values = b"".join(self._values)
        arguments = values, len(self._values), head, len(head), text, len(text), address
        if not self._library.shard(self._saver, *arguments):
            raise MemoryError(f"no {self._directory} are saved any more, as there is no memory")
        self._shard += bool(self._values)
        self._head_entries, self._values, self._lines, self._copies = [], [], [], {}
        self._length = self._offset = 0
        self._handed_over = monotonic()

    def _end(self) -> None:
        """Stop saving after an error of writing; the training continues."""
        if self._library is None or self.has_ended:
            return
        self.has_ended = True
        error = self._library.settle(self._saver)
        self._agent.warn(f"no further {self._directory} are saved: {os.strerror(error)}", "tensors-ended")
        line = to_json({"dropped": -1, "mode": "global", "why": _REASONS.get(error, "unwritable"), "name": ""}) + "\n"
        self._library.lines(self._saver, line.encode(), len(line))

    def _settle(self) -> None:
        """Flush before a fork: the native thread ends, and is started again when needed."""
        if self._library is not None:
            self._library.settle(self._saver)

    def finish(self, summary: Mapping[str, object] = MappingProxyType({})) -> None:
        """Write the remaining values, and the end of the index with a summary of the steps."""
        if self._library is None or self.has_ended:
            return
        with self._lock:
            self._line({"end": True, **summary})
            self._hand_over()
            if self._library.settle(self._saver):
                self._end()
            self.has_ended = True


def _number(number: float) -> str:
    """Return a number as JSON has it, or as a text if JSON has no such number."""
    return repr(number) if number - number == 0 else f'"{number!r}"'
