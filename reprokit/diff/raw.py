"""Compares uninterpreted bytes."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core import native
from reprokit.core.difference import Difference, Verdict
from reprokit.diff.decompression import UnpackedSource
from reprokit.diff.elements import Source
from reprokit.diff.sources import BLOCK, fill_exactly

AS_BYTES = "differing_bytes"  # key in the figures of what was compared as bytes
SHOWN = 16  # bytes around the first difference that are shown


def same(left: Source, right: Source) -> bool:
    """Return whether two sources have equal bytes; stops at the first difference."""
    are_packed = isinstance(left, UnpackedSource) and isinstance(right, UnpackedSource) and left.method == right.method
    if are_packed and same(left.packed, right.packed):  # type: ignore[attr-defined]
        return True
    return left.size == right.size and all(
        left_block == right_block for _, _, left_block, right_block in _blocks(left, right)
    )


def _blocks(left: Source, right: Source) -> Iterator[tuple[int, int, bytearray, bytearray]]:
    """Yield blocks of the common length of both sources: offset, length, and two reused buffers."""
    size = min(left.size, right.size)
    left_buffer, right_buffer = bytearray(min(BLOCK, size)), bytearray(min(BLOCK, size))
    with memoryview(left_buffer) as left_view, memoryview(right_buffer) as right_view:
        for offset in range(0, size, BLOCK):
            length = min(BLOCK, size - offset)
            fill_exactly(left, offset, left_view[:length])
            fill_exactly(right, offset, right_view[:length])
            yield offset, length, left_buffer, right_buffer


def difference(name: str, left: Source, right: Source, meaning: str = "") -> Difference:
    """Return the leaf of two sources that differ: the first differing byte, and how many differ."""
    ffi, library = native.artifacts()
    size = first = min(left.size, right.size)
    count = 0
    for offset, length, left_block, right_block in _blocks(left, right):
        if left_block == right_block:
            continue
        buffers = ffi.from_buffer(left_block), ffi.from_buffer(right_block), length
        if not count:
            first = offset + library.rka_first_other(*buffers)
        count += library.rka_count_other(*buffers)
    texts = _text(left, first), _text(right, first)
    detail = f"{count} of {size} bytes differ, first at {first}" if count else f"the same up to byte {size}"
    figures = {"bytes": [left.size, right.size], "first_byte": first, AS_BYTES: count}
    detail = f"{meaning}; {detail}" if meaning else detail
    return Difference(name, Verdict.DIFFERENT, texts[0], texts[1], detail, figures=figures)


def _text(source: Source, at: int) -> str:
    shown = source.read(at, SHOWN).hex(" ")
    return f"{source.size} bytes, at {at}: {shown}" if shown else f"{source.size} bytes"
