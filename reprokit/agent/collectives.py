"""Writes down what collectives gave this process, so that a program that trains by hand over MPI can be compared.

A large result is not read whole at each call, as that may take longer than the collective. Pieces of it are, other
ones at each call, so that all of it has its turn.
"""

from __future__ import annotations

import hashlib

from .core.json_text import to_json
from .core.thread_names import on_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .agent import Agent

WHOLE = 64 << 10  # bytes of results that are read whole
PIECES, PIECE = 8, 512  # of larger ones: their number, and bytes of each
SINGLE = 100_000  # calls of a thread that have a line each
MAX_HEADS = 1000  # of lines, that are kept as text
TOGETHER = 1000  # later ones that have a line together
MAX_PARTS, MAX_DEPTH = 1000, 20  # of an object that was pickled
_SCALARS = (type(None), bool, int, float, complex, str, bytes)


class CollectiveSeries:
    """The calls of one thread."""

    def __init__(self) -> None:
        self.count = 0
        self.waiting = 0  # calls that are in the chain and in no line
        self.chain = hashlib.sha256()


class CollectiveLog:
    """Writes a line for each collective of this process; many calls later, one for several."""

    def __init__(self, agent: Agent, library: str) -> None:
        self._agent, self._library = agent, library
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop what the parent noted."""
        self._series: dict[str, CollectiveSeries] = {}
        self._heads: dict[tuple[Any, ...], str] = {}  # what lines of like calls have in common

    def note(self, operation: str, ranks: int, dtype: str, shape: Sequence[int], data: Any) -> None:
        """Take in a call: its result as bytes, or a digest already; of one without a result only the number is kept."""
        name = on_thread(self._library)
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = CollectiveSeries()
        step = series.count
        series.count += 1
        if data is None:
            return
        digest, whole = (data, True) if type(data) is str else digest_of(data, step)
        if step < SINGLE:
            # By hand: a collective of a MiB takes no longer than a few hundred microseconds.
            like = name, operation, ranks, dtype, tuple(shape)
            head = self._heads.get(like) or self._head(like)
            text = f'{head}{step},"digest":"{digest}","whole":{"true" if whole else "false"}'
            self._agent.journal.write_text("collective", text)
            return
        series.chain.update(repr((operation, ranks, dtype, tuple(shape), digest)).encode())
        series.waiting += 1
        if series.waiting == TOGETHER:
            self._write_chain(name, series)

    def _head(self, like: tuple[Any, ...]) -> str:
        name, operation, ranks, dtype, shape = like
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        head = f',"name":{to_json(name)},"calls":1,"operation":{to_json(operation)},"ranks":{to_json(ranks)}'
        head += f',"dtype":{to_json(dtype)},"shape":{to_json(list(shape))},"step":'
        self._heads[like] = head
        return head

    def _write_chain(self, name: str, series: CollectiveSeries) -> None:
        count, digest = series.waiting, "sha256:" + series.chain.hexdigest()
        line = {"name": name, "step": series.count - 1, "calls": count, "operation": "", "ranks": 0, "dtype": ""}
        self._agent.journal.write("collective", {**line, "shape": [], "digest": digest, "whole": False})
        series.waiting, series.chain = 0, hashlib.sha256()

    def finish(self) -> None:
        for name, series in list(self._series.items()):
            if series.waiting:
                self._write_chain(name, series)


def digest_of(data: Any, call: int) -> tuple[str, bool]:
    """Return the digest of a result in memory, and whether it is of the whole."""
    size = len(data)
    if size <= WHOLE:
        return "sha256:" + hashlib.sha256(data).hexdigest(), True
    stride = size // PIECES
    first = call * PIECE % stride
    pieces = [data[start : start + PIECE] for start in range(first, first + PIECES * stride, stride)]
    return "sha256:" + hashlib.sha256(b"".join(pieces)).hexdigest(), False


def bytes_of(buffer: Any) -> Any:
    """Return the memory of an array, as bytes in C order."""
    view = memoryview(buffer)
    if not view.nbytes:
        return b""
    return view.cast("B") if view.c_contiguous else view.tobytes()


def object_digest_of(value: Any) -> str | None:
    """Return the digest of numbers, texts and arrays, also in lists and dictionaries; None of anything else.

    Other objects may say their address, and their pickle another one each time.
    """
    state = hashlib.sha256()
    parts = _feed(state, value, MAX_PARTS)
    return None if parts < 0 else "sha256:" + state.hexdigest()


def _feed(state: Any, value: Any, room: int, depth: int = 0) -> int:
    """Take in a value; return how many more parts there may be, and less than 0 where it cannot be read."""
    kind = type(value)
    if kind in _SCALARS:
        state.update(f"{kind.__name__}\0{value!r}\0".encode("utf-8", "backslashreplace"))
        return room - 1
    if kind in (list, tuple, dict) and depth < MAX_DEPTH:
        state.update(f"{kind.__name__}\0{len(value)}\0".encode())
        parts = value if kind is not dict else [part for pair in value.items() for part in pair]
        for part in parts:
            room = _feed(state, part, room, depth + 1) if room > 0 else -1
        return room - 1
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "hasobject", True) or not hasattr(value, "tobytes"):  # no array or scalar of NumPy's
        return -1
    state.update(f"{dtype}\0{value.shape}\0".encode() + value.tobytes())
    return room - 1
