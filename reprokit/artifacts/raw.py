"""Compares bytes that nobody understands."""

from __future__ import annotations

from reprokit.artifacts.decompression import Unpacked
from reprokit.artifacts.elements import Source
from reprokit.artifacts.sources import BLOCK, fill_exactly
from reprokit.difference import Difference, Verdict

AS_BYTES = "differing_bytes"  # among the figures of what was compared as bytes
SHOWN = 16  # bytes around the first difference that are shown


def same(left: Source, right: Source) -> bool:
    """Whether two sources hold the same bytes; stops at the first that differ."""
    return _same_packed(left, right) or (left.size == right.size and first_other(left, right) is None)


def _same_packed(left: Source, right: Source) -> bool:
    """Whether two sources unpack the same bytes in the same way."""
    if not isinstance(left, Unpacked) or not isinstance(right, Unpacked):
        return False
    return left.method == right.method and same(left.packed, right.packed)


def first_other(left: Source, right: Source) -> int | None:
    """Where the block begins in which two sources first differ, of what both have."""
    size = min(left.size, right.size)
    one, other = bytearray(min(BLOCK, size)), bytearray(min(BLOCK, size))
    with memoryview(one) as left_view, memoryview(other) as right_view:
        for at in range(0, size, BLOCK):
            some = min(BLOCK, size - at)
            fill_exactly(left, at, left_view[:some])
            fill_exactly(right, at, right_view[:some])
            if one != other:
                return at
    return None


def difference(name: str, left: Source, right: Source, meaning: str = "") -> Difference:
    """The leaf of two sources that differ: where first, and in how many bytes."""
    start = first_other(left, right)
    size = min(left.size, right.size)
    first, count = (size, 0) if start is None else _counted(left, right, start, size)
    texts = _text(left, first), _text(right, first)
    detail = f"{count} of {size} bytes differ, first at {first}" if count else f"the same up to byte {size}"
    figures = {"bytes": [left.size, right.size], "first_byte": first, AS_BYTES: count}
    detail = f"{meaning}; {detail}" if meaning else detail
    return Difference(name, Verdict.DIFFERENT, texts[0], texts[1], detail, figures=figures)


def _text(source: Source, at: int) -> str:
    shown = source.read(at, SHOWN).hex(" ")
    return f"{source.size} bytes, at {at}: {shown}" if shown else f"{source.size} bytes"


def _counted(left: Source, right: Source, start: int, size: int) -> tuple[int, int]:
    """The first byte that differs, and how many do."""
    from reprokit import native

    ffi, library = native.artifacts()
    one, other = bytearray(BLOCK), bytearray(BLOCK)
    first, count = None, 0
    for at in range(start, size, BLOCK):
        some = min(BLOCK, size - at)
        with memoryview(one) as left_view, memoryview(other) as right_view:
            fill_exactly(left, at, left_view[:some])
            fill_exactly(right, at, right_view[:some])
        buffers = ffi.from_buffer(one), ffi.from_buffer(other), some
        if first is None and (inside := library.rka_first_other(*buffers)) < some:
            first = at + inside
        count += library.rka_count_other(*buffers)
    return (size if first is None else first), count
