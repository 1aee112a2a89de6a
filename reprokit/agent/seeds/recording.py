"""Looks up seeds in the recording that is being replayed.

seeds.jsonl is read again for each look-up, and nothing of it is kept in memory or open. A replay must have its objects
at the same addresses as the recording. So a recording reads a file, too, with a path of the same length, into a buffer
that both have. Both read more than 256 bytes: an int that is allocated in memory.
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
