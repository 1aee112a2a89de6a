"""xz: what it unpacks to."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.parts import Limits, Part, Source, Within
from reprokit.artifacts.unpacked import XZ, Unpacked


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The file within."""
    yield Within("", Unpacked(source, XZ, limits))
