"""Saves values of tensors in the run directory: shards, and an index of one line a value (docs/format.md).

The native library copies values into a buffer immediately; a thread of its own, unknown to libc, writes them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from _thread import allocate_lock
from functools import partial
from types import MappingProxyType

from .. import trail_library
from ..capture.store import COMPLEX, DTYPES, SIZES
from ..core.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..agent import Agent
    from .tensor_rules import Choice

FORMAT = 1
COPIED, HAND_OVER, TOO_LARGE, ENDED = range(4)  # enum rkt_put of native/trail/tensors.c
REDUCTIONS = ("min", "max", "sum", "mean", "variance", "std", "prod", "l1", "l2")  # enum rkt_reduction
SECOND_PASS = frozenset(["variance", "std", "abs_variance", "abs_std"])
ABSOLUTE = "abs_"
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
        self.put = function("put", word, pointer, number, number)
        self.is_due = function("is_due", word, pointer)
        self.shard = function("shard", word, pointer, text, number, text, number, text, number, number)
        self.settle = function("settle", word, pointer)
        self.lines = function("lines", word, pointer, text, number)
        self._reduce = function("reduce", None, number, number, word, word, word, ctypes.POINTER(ctypes.c_double))

    def reductions(self, numbers: NumberArray, names: Sequence[str]) -> dict[str, float]:
        """Return the reductions of these names, computed over the numbers."""
        results: dict[str, float] = {}
        buffer = (ctypes.c_double * len(REDUCTIONS))()
        for prefix in ("", ABSOLUTE):
            selected = [name for name in names if name.startswith(ABSOLUTE) == bool(prefix)]
            if selected and numbers.count:
                needs_second_pass = not SECOND_PASS.isdisjoint(selected)
                self._reduce(numbers.address, numbers.count, numbers.is_double, bool(prefix), needs_second_pass, buffer)
                results.update({name: buffer[REDUCTIONS.index(name[len(prefix) :])] for name in selected})
        return {name: results[name] for name in names if name in results}


class TensorWriter:
    """Writes the tensors of this process; opens its files when the first one arrives."""

    def __init__(self, agent: Agent, framework: str, buffer: int) -> None:
        self._agent, self._framework, self._buffer = agent, framework, buffer
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
        self._lines: list[str] = []
        self._length = self._offset = 0
        self._declared: set[str] = set()
        self._dropped: set[tuple[str, str]] = set()
        self._kinds: dict[Any, tuple[str, str, int]] = {}  # by dtype and shape
        self.has_ended = False

    def _begin(self) -> None:
        path = trail_library.path_of(self._agent.run)
        if path is None:
            raise RuntimeError("no tensors are saved, as the library for it is not there")
        library, error = TensorLibrary(path), ctypes.c_int()
        identity = self._agent.journal.identity
        rank = identity.partition("/")[0].rpartition("rank")[2] if identity.startswith("rank") else ""
        first = {"format": FORMAT, "process": identity, "rank": rank, "framework": self._framework}
        run, text = os.fsencode(self._agent.run), to_json(first).encode() + b"\n"
        self._saver = library.saver(run, identity.encode(), text, self._buffer, ctypes.byref(error)) or 0
        if not self._saver:
            raise OSError(error.value, "no tensors are saved, as their files cannot be written")
        self._library = library

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
            if self._library is None:
                self._begin()
            head, kind, _ = spelling = self._kinds.get((dtype, shape)) or self._kind(dtype, shape)
            step, mode, name, call = value_key
            line = f'{{"step":{step},"mode":"{mode}","name":{to_json(name)},"call":{call},{kind}'
            if choice.reductions:
                assert self._library is not None
                reductions = self._library.reductions(numbers(), choice.reductions)
                self._add(f'{line},"reductions":{to_json({key: _readable(reductions[key]) for key in reductions})}}}\n')
            if choice.is_full and not head:
                self._drop(step, mode, name, "unreadable")
            elif choice.is_full:
                self._copy(line, spelling, memory)

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
        answer = self._library.put(self._saver, address, size)
        if answer == HAND_OVER:
            self._hand_over()
            answer = self._library.put(self._saver, address, size)
        if answer == ENDED:
            self._end()
            return
        key = len(self._head_entries)
        self._head_entries.append(f'"{key}":{spelling[0]}{self._offset},{self._offset + size}]}}')
        start = f'{line},"shard":{self._shard},"key":"{key}","digest":"'
        self._values.append(struct.pack("<3Q", size, spelling[2], self._length + len(start)))
        self._add(f'{start}{"0" * 16}"}}\n')
        self._offset += size
        if answer == TOO_LARGE:
            self._hand_over(address)

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
                self._line({"passed": step, "mode": mode})
            if self._library is None:
                self._begin()
            assert self._library is not None
            if self._library.is_due(self._saver):
                self._hand_over()

    def _hand_over(self, address: int = 0) -> None:
        assert self._library is not None
        head, text = ("{" + ",".join(self._head_entries) + "}").encode(), "".join(self._lines).encode()
        values = b"".join(self._values)
        arguments = values, len(self._values), head, len(head), text, len(text), address
        if not self._library.shard(self._saver, *arguments):
            raise MemoryError("no tensors are saved any more, as there is no memory")
        self._shard += bool(self._values)
        self._head_entries, self._values, self._lines = [], [], []
        self._length = self._offset = 0

    def _end(self) -> None:
        """Stop saving after an error of writing; the training continues."""
        if self._library is None or self.has_ended:
            return
        self.has_ended = True
        error = self._library.settle(self._saver)
        self._agent.warn(f"no further tensors are saved: {os.strerror(error)}")
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


def _readable(number: float) -> object:
    """Return a number as JSON has it, and as a text what JSON has no number for."""
    return number if number - number == 0 else repr(number)
