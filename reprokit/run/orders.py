"""Passes recorded orders to a replay's agents: writes orders.jsonl from the recording's metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Annotated

import msgspec

MAX_SIZE = 60 << 20  # bytes of orders.jsonl
MAX_TURNS = 1 << 14  # of one line, as agents write them
MAX_PACKED = 1 << 17  # characters of a line's encoded turns
MAX_ACTORS = 60_000
MAX_NAME = 1000  # characters
MAX_SECONDS = 1e9
MAX_DIGITS = 16  # of a time in seconds


class WrittenLine(msgspec.Struct, frozen=True):
    """The time of a line of any kind."""

    t: float


class GivenOrder(msgspec.Struct, frozen=True, array_like=True):
    """A line of one track as a replay is given it: its actors, and who of them had each turn."""

    p: str
    track: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    actors: Annotated[list[Annotated[str, msgspec.Meta(max_length=MAX_NAME)]], msgspec.Meta(max_length=MAX_ACTORS)]
    turns: Annotated[str, msgspec.Meta(max_length=MAX_PACKED, pattern="^[A-Za-z0-9+/]*=*$")]
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_TURNS)]


class RecordedOrder(GivenOrder, frozen=True, array_like=False, kw_only=True):
    """Such a line as agents record it."""

    t: float  # when it was written


class OrdersByProcess:
    """The recorded tracks of each process, in the order of their lines."""

    def __init__(self) -> None:
        self._processes: dict[str, list[bytes]] = {}
        self._size = 1 + MAX_DIGITS
        self._began = self._ended = 0.0  # times of the first line of all and of the last one with an order
        self._earlier = 0.0  # seconds of the runs before a continued one
        self.left_out = 0
        self.damaged = 0  # complete lines with an invalid order

    def take(self, line: bytes) -> None:
        """Process one line of metrics.jsonl of any kind."""
        if not self._began:
            self._began = _time_of(line)
        if not line.startswith(b'{"k":"order",'):
            return
        try:
            order = msgspec.json.decode(line, type=RecordedOrder)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.damaged += line.endswith(b"\n")
            return
        self._ended = max(self._ended, order.t)
        self._add(order)

    def take_given(self, text: bytes) -> None:
        """Take the lines that a continued run was given: those of the runs before it."""
        seconds, *lines = text.splitlines(keepends=True)
        try:
            self._earlier = min(max(0.0, float(seconds)), MAX_SECONDS)
            for line in lines:
                self._add(msgspec.json.decode(line, type=GivenOrder))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.damaged += 1

    def _add(self, order: GivenOrder) -> None:
        text = json.dumps([order.p, order.track, order.actors, order.turns, order.count], separators=(",", ":")) + "\n"
        if self.left_out or self._size + len(text) > MAX_SIZE:  # nothing later is added, as no track may have a gap
            self.left_out += 1
            return
        self._size += len(text)
        self._processes.setdefault(order.p, []).append(text.encode())

    def lines(self, twice: Collection[str]) -> Iterator[bytes]:
        """Yield the lines of orders.jsonl, without processes whose identity another process had as well.

        The first line is the time from the run's first line to its last order, in seconds.
        """
        yield b"%.1f\n" % min(self._earlier + max(0.0, self._ended - self._began), MAX_SECONDS)
        for process, lines in self._processes.items():
            if process not in twice:
                yield from lines


def _time_of(line: bytes) -> float:
    """Return when a line was written; 0 if it cannot be read."""
    try:
        return msgspec.json.decode(line, type=WrittenLine).t
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return 0.0
