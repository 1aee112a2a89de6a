"""Hands the recorded orders on to the agents of a replay: orders.jsonl, made from the recording's metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Annotated

import msgspec

MAX_SIZE = 60 << 20  # bytes of orders.jsonl
MAX_TURNS = 1 << 14  # of a line, as agents write it
MAX_PACKED = 1 << 17  # characters of them
MAX_ACTORS = 60_000
MAX_NAME = 1000  # characters


class RecordedOrder(msgspec.Struct, frozen=True):
    """A line of a track: who had turns, one after another."""

    p: str
    track: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    actors: Annotated[list[Annotated[str, msgspec.Meta(max_length=MAX_NAME)]], msgspec.Meta(max_length=MAX_ACTORS)]
    turns: Annotated[str, msgspec.Meta(max_length=MAX_PACKED, pattern="^[A-Za-z0-9+/]*=*$")]
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_TURNS)]


class OrdersByProcess:
    """The recorded tracks, by process, in the order written."""

    def __init__(self) -> None:
        self._processes: dict[str, list[bytes]] = {}
        self._size = 1
        self.left_out = 0
        self.damaged = 0  # whole lines that are no order

    def take(self, line: bytes) -> None:
        """Take in one line of metrics.jsonl, whatever it is."""
        if not line.startswith(b'{"k":"order",'):
            return
        try:
            order = msgspec.json.decode(line, type=RecordedOrder)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.damaged += line.endswith(b"\n")
            return
        text = json.dumps([order.p, order.track, order.actors, order.turns, order.count], separators=(",", ":")) + "\n"
        if self.left_out or self._size + len(text) > MAX_SIZE:  # of a track no part may be missing in the middle
            self.left_out += 1
            return
        self._size += len(text)
        self._processes.setdefault(order.p, []).append(text.encode())

    def lines(self, twice: Collection[str]) -> Iterator[bytes]:
        """Yield what orders.jsonl holds, of processes whose identity no other one had too."""
        yield b"\n"
        for process, lines in self._processes.items():
            if process not in twice:
                yield from lines
