"""Looks up the seeds of the recording that is being replayed.

seeds.jsonl is read anew for each look-up and nothing of it is kept, neither in memory nor as a descriptor:
the process of a replay is to have its objects where the recorded one had them. So a recording reads a file too, of a
path of the same length, into memory that both have, and both are told of more bytes than 256: an int that takes memory.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 64 << 10
MAX_LINE = 32 << 10  # of one line; the launcher leaves longer ones out
MAX_BLOCKS = 256
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class RecordedSeeds:
    """seeds.jsonl of this run, which only a replay has."""

    def __init__(self, run: str) -> None:
        self._absent = False
        self._path = run + "/seeds.jsonl"
        self._block = 0  # where the last line was found: the next one is near
        self._buffer: bytearray | None = None

    def agrees(self, line: str) -> bool:
        """Return whether the recording holds this line, up to its closing bracket, or no line at all."""
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
            is_held = self._buffer.count(needle, 0, size) > 0  # of find() the int may take memory, or none
            return self._absent or is_held
        finally:
            os.close(descriptor)

    def value(self, start: str) -> bytes | None:
        """Return what stands behind this beginning of a line, up to its closing bracket."""
        needle = b"\n" + start.encode()
        for number, block in self._blocks():
            found = block.find(needle)
            end = block.find(b"]\n", found + len(needle)) if found >= 0 else -1
            if end >= 0:
                self._block = number
                return block[found + len(needle) : end]
        return None

    def holds(self, end: str) -> bool:
        """Return whether a line ends so."""
        needle = end.encode() + b"]\n"
        return any(needle in block for _, block in self._blocks())

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the file from the last line found on, then from its beginning; each block with the next one's start."""
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
