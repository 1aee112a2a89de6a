"""Helpers for files of objects: what a comparison found, and the parts of one file as text."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core.difference import Difference
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff import tensors
from reprokit.diff.elements import Blob, Limits, NestedFile, Noise, Reader, TensorPart, Value
from reprokit.diff.sources import BytesSource, read_exactly
from tests.diff.samples import diff


def leaves(found: Difference) -> Iterator[Difference]:
    """The differences that have none below them."""
    if not found.children and found.verdict.differs:
        yield found
    for child in found.children:
        yield from leaves(child)


def named(left: bytes, right: bytes, name: str) -> dict[str, str]:
    """The names of what differs, below the file, with both sides and the detail."""
    found = diff(left, right, name)
    return {leaf.name.removeprefix(f"{name}/"): f"{leaf.left} | {leaf.right} | {leaf.detail}" for leaf in leaves(found)}


def same(left: bytes, right: bytes, name: str) -> bool:
    """Whether a comparison finds no difference."""
    return not diff(left, right, name).verdict.differs


def shown(read: Reader, data: bytes) -> dict[str, str]:
    """The meaning of a file: every part but noise, with all of its bytes."""
    return dict(_shown(read, data))


def _shown(read: Reader, data: bytes) -> Iterator[tuple[str, str]]:
    for part in read(BytesSource(data), Limits()):
        if isinstance(part, TensorPart):
            tensors.check(part, Limits())
            elements = read_exactly(part.source, 0, part.source.size).hex()
            yield part.name, f"{part.dtype} {part.shape} {part.strides} {part.offset} {part.big_endian} {elements}"
        elif isinstance(part, Value):
            yield part.name, part.text
        elif isinstance(part, (Blob, NestedFile)):
            yield part.name, read_exactly(part.source, 0, part.source.size).hex()
        else:
            assert isinstance(part, Noise)


def meaning(read: Reader, data: bytes) -> dict[str, str] | None:
    """As shown, None for a file that is refused; any other exception is the test's failure."""
    try:
        return shown(read, data)
    except ArtifactDamaged:
        return None
