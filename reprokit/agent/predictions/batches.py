"""Predictions that come batch by batch: they are put together, and become one line for each type."""

from __future__ import annotations

import sys

from .log import MAX_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .log import PredictionLog, Tally
    from .samples import Rows

MAX_WAITING = 256  # batches
MAX_WAITING_BYTES = 4 << 20


class Pieces:
    """What the batches of one evaluation predicted, and what was true of them."""

    def __init__(self, evaluation: PredictionLog, name: str, stream: str, hint: str | None, room: list[int]) -> None:
        self.name = name
        self.hint = hint
        self._evaluation = evaluation
        self._stream = stream
        self._room = room  # bytes left, which all of this name share
        self._waiting: list[tuple[Any, Any]] = []
        self._bytes = 0
        self._tallies: dict[tuple[object, ...], Tally] = {}

    def add(self, pred: Any, truth: Any) -> None:
        """Take in a batch, whose values stay as they are."""
        self._waiting.append((pred, truth))
        self._bytes += _size(pred) + _size(truth)
        if len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
            self._flush(whole=False)

    def finish(self) -> None:
        """Write the lines."""
        try:
            self._flush(whole=not self._tallies)
        finally:
            self._evaluation.end_pieces(self, self._tallies.values())

    def drop(self) -> None:
        """The evaluation failed."""
        self._evaluation.end_pieces(self, ())

    def tally_of(self, sides: tuple[Rows, Rows | None]) -> Tally | None:
        """The line that rows of such types belong to; None where there are too many."""
        kind = tuple((rows.dtype, *rows.shape[1:]) for rows in sides if rows is not None)
        if kind not in self._tallies and len(self._tallies) < MAX_TYPES:
            self._tallies[kind] = self._evaluation.tally(self._stream, hint=self.hint, room=self._room)
        return self._tallies.get(kind)

    def _flush(self, *, whole: bool) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for pred, truth in _joined(waiting):
            self._evaluation.add_pieces(self, pred, truth, whole=whole)


def _joined(batches: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The batches in their order, those of one type as one, so that the work is not done for each."""
    groups: dict[tuple[object, ...], list[tuple[Any, Any]]] = {}
    for batch in batches:
        pair = _array(batch[0]), None if batch[1] is None else _array(batch[1])
        kind = tuple(None if side is None else (str(side.dtype), *side.shape[1:]) for side in pair)
        groups.setdefault(kind, []).append(pair)
    return [tuple(map(_whole, zip(*group))) for group in groups.values()]


def _whole(sides: tuple[Any, ...]) -> Any:
    if sides[0] is None or len(sides) == 1:
        return sides[0]
    if hasattr(sides[0], "detach"):
        return sys.modules["torch"].cat(sides)
    return sys.modules["numpy"].concatenate(sides)


def _array(value: Any) -> Any:
    """An array of NumPy; tensors of PyTorch, some of whose types NumPy does not know, are only taken from the GPU."""
    return value.cpu() if hasattr(value, "detach") else sys.modules["numpy"].asarray(value)


def _size(value: Any) -> int:
    """Bytes, of a tensor on any device."""
    if value is None:
        return 0
    width: Any = getattr(value.dtype, "itemsize", None) or getattr(value.dtype, "size", 8)
    number = int(width)
    for size in value.shape:
        number *= int(size)
    return number
