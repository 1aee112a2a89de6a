"""Records the results of collectives in this process, so that hand-written trainings over MPI can be compared.

Large results are not digested whole at each call, as that may take longer than the collective. Instead some pieces are,
other ones at each call, until all of a result was covered.
"""

from __future__ import annotations

import hashlib

from .json_text import to_json
from .thread_names import on_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .agent import Agent

WHOLE = 64 << 10  # bytes up to which a result is digested whole
PIECES, PIECE = 8, 512  # number of pieces of larger results, and bytes of each
SINGLE = 100_000  # first calls of a thread, with a line each
MAX_HEADS = 1000  # cached beginnings of lines
TOGETHER = 1000  # later calls in one line
MAX_PARTS, MAX_DEPTH = 1000, 20  # of a pickled object
_SCALARS = (type(None), bool, int, float, complex, str, bytes)


class CollectiveSeries:
    """The collective calls of one thread."""

    def __init__(self) -> None:
        self.count = 0
        self.unwritten = 0  # calls in the chain that are not written so far
        self.chain = hashlib.sha256()


class CollectiveLog:
    """Writes a line for each collective of this process; after SINGLE calls one for several."""

    def __init__(self, agent: Agent, library: str) -> None:
        self._agent, self._library = agent, library
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        self._series: dict[str, CollectiveSeries] = {}
        self._heads: dict[tuple[Any, ...], str] = {}  # by call: the common beginning of its lines

    def note(self, operation: str, ranks: int, dtype: str, shape: Sequence[int], data: Any) -> None:
        """Record a call; data is its result as bytes, its digest, or None if only the call is counted."""
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
            # Formatted by hand, as a collective of a MiB takes only a few hundred microseconds.
            signature = name, operation, ranks, dtype, tuple(shape)
            head = self._heads.get(signature) or self._head(signature)
            text = f'{head}{step},"digest":"{digest}","whole":{"true" if whole else "false"}'
            self._agent.journal.write_text("collective", text)
            return
        series.chain.update(repr((operation, ranks, dtype, tuple(shape), digest)).encode())
        series.unwritten += 1
        if series.unwritten == TOGETHER:
            self._write_chain(name, series)

    def _head(self, signature: tuple[Any, ...]) -> str:
        name, operation, ranks, dtype, shape = signature
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        head = f',"name":{to_json(name)},"calls":1,"operation":{to_json(operation)},"ranks":{to_json(ranks)}'
        head += f',"dtype":{to_json(dtype)},"shape":{to_json(list(shape))},"step":'
        self._heads[signature] = head
        return head

    def _write_chain(self, name: str, series: CollectiveSeries) -> None:
        count, digest = series.unwritten, "sha256:" + series.chain.hexdigest()
        line = {"name": name, "step": series.count - 1, "calls": count, "operation": "", "ranks": 0, "dtype": ""}
        self._agent.journal.write("collective", {**line, "shape": [], "digest": digest, "whole": False})
        series.unwritten, series.chain = 0, hashlib.sha256()

    def finish(self) -> None:
        for name, series in list(self._series.items()):
            if series.unwritten:
                self._write_chain(name, series)


def digest_of(data: Any, call: int) -> tuple[str, bool]:
    """Return the digest of a result in memory, and whether it covers all bytes."""
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
    """Return the digest of numbers, texts and arrays, also in lists and dictionaries; None for other objects.

    The text of other objects may hold their address, and their pickle may vary.
    """
    state = hashlib.sha256()
    parts = _feed(state, value, MAX_PARTS)
    return None if parts < 0 else "sha256:" + state.hexdigest()


def _feed(state: Any, value: Any, parts_left: int, depth: int = 0) -> int:
    """Update the digest by a value; return the number of parts still allowed, below 0 if it cannot be digested."""
    kind = type(value)
    if kind in _SCALARS:
        state.update(f"{kind.__name__}\0{value!r}\0".encode("utf-8", "backslashreplace"))
        return parts_left - 1
    if kind in (list, tuple, dict) and depth < MAX_DEPTH:
        state.update(f"{kind.__name__}\0{len(value)}\0".encode())
        parts = value if kind is not dict else [part for pair in value.items() for part in pair]
        for part in parts:
            parts_left = _feed(state, part, parts_left, depth + 1) if parts_left > 0 else -1
        return parts_left - 1
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "hasobject", True) or not hasattr(value, "tobytes"):  # neither an array nor a scalar of NumPy
        return -1
    state.update(f"{dtype}\0{value.shape}\0".encode() + value.tobytes())
    return parts_left - 1
