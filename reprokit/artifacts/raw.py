"""Compares bytes that nobody understands."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit import native
from reprokit.artifacts.decompression import Unpacked
from reprokit.artifacts.elements import Source
from reprokit.artifacts.sources import BLOCK, fill_exactly
from reprokit.difference import Difference, Verdict

AS_BYTES = "differing_bytes"  # among the figures of what was compared as bytes
SHOWN = 16  # bytes around the first difference that are shown


def same(left: Source, right: Source) -> bool:
    """Return whether two sources hold the same bytes; stops at the first that differ."""
    are_packed = isinstance(left, Unpacked) and isinstance(right, Unpacked) and left.method == right.method
    if are_packed and same(left.packed, right.packed):  # type: ignore[attr-defined]
        return True
    return left.size == right.size and all(one == other for _, _, one, other in _blocks(left, right))


def _blocks(left: Source, right: Source) -> Iterator[tuple[int, int, bytearray, bytearray]]:
    """Yield what both sources have, some at a time: where, how much, and the bytes in memory that is used again."""
    size = min(left.size, right.size)
    one, other = bytearray(min(BLOCK, size)), bytearray(min(BLOCK, size))
    with memoryview(one) as left_view, memoryview(other) as right_view:
        for at in range(0, size, BLOCK):
            some = min(BLOCK, size - at)
            fill_exactly(left, at, left_view[:some])
            fill_exactly(right, at, right_view[:some])
            yield at, some, one, other


def difference(name: str, left: Source, right: Source, meaning: str = "") -> Difference:
    """Return the leaf of two sources that differ: where first, and in how many bytes."""
    ffi, library = native.artifacts()
    size = first = min(left.size, right.size)
    count = 0
    for at, some, one, other in _blocks(left, right):
        if one == other:
            continue
        buffers = ffi.from_buffer(one), ffi.from_buffer(other), some
        if not count:
            first = at + library.rka_first_other(*buffers)
        count += library.rka_count_other(*buffers)
    texts = _text(left, first), _text(right, first)
    detail = f"{count} of {size} bytes differ, first at {first}" if count else f"the same up to byte {size}"
    figures = {"bytes": [left.size, right.size], "first_byte": first, AS_BYTES: count}
    detail = f"{meaning}; {detail}" if meaning else detail
    return Difference(name, Verdict.DIFFERENT, texts[0], texts[1], detail, figures=figures)


def _text(source: Source, at: int) -> str:
    shown = source.read(at, SHOWN).hex(" ")
    return f"{source.size} bytes, at {at}: {shown}" if shown else f"{source.size} bytes"
