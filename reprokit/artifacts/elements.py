"""What every file is made of for a comparison: tensors, values, bytes, files within, and the noise of its container.

A reader of a format turns a source of bytes into parts, lazily and in the order of the file. It copies nothing
that it need not: a tensor says where its bytes stand. Names are paths within the file, with "/" between levels.
A reader raises errors.ArtifactDamaged where a file is not what its format says, or goes beyond the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


class Source(Protocol):
    """Bytes that can be read at any place: a file, a member of an archive, a piece of either."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset` on; fewer only at the end."""


class Siblings:
    """The files beside a source, which has them as its attribute `beside` where there are any."""

    def __init__(self, name: str, find: Callable[[str], Source | None]):
        self.name = name  # of the source itself
        self.opened: dict[str, Source] = {}
        self._find = find

    def open(self, name: str) -> Source | None:
        """Return the file of this name; None where there is none that can be read."""
        if name not in self.opened and name not in ("", ".", "..") and "/" not in name:
            found = self._find(name)
            if found is not None:
                self.opened[name] = found
        return self.opened.get(name)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Numbers of one type: shape in elements, first the outermost dimension."""

    name: str
    dtype: str  # NumPy's name, or bfloat16, float8_e4m3fn, float8_e5m2, ...
    shape: tuple[int, ...]
    source: Source
    offset: int = 0  # in bytes, of the first element
    strides: tuple[int, ...] | None = None  # in elements; None where the elements stand in C order without gaps
    big_endian: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """Anything small that is no tensor, as a text that says it exactly, with its type where that matters."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that no reader understands."""

    name: str
    source: Source


@dataclass(frozen=True, slots=True)
class Within:
    """A file inside of a file, which is looked at like a file of its own."""

    name: str
    source: Source
    check: str = ""  # the container's own check sum of it: other ones over the same bytes mean damage


@dataclass(frozen=True, slots=True)
class Noise:
    """What a container adds by itself, such as a time stamp or the order of its members: never a difference."""

    name: str
    text: str


Part: TypeAlias = TensorPart | Value | Blob | Within | Noise


@dataclass
class Spent:
    """What a file with all the files within it has used up."""

    unpacked: int = 0
    parts: int = 0
    compared: int = 0  # bytes of tensors


@dataclass(frozen=True)
class Limits:
    """Bounds for files of unknown origin; what goes beyond is an error, never a long wait."""

    header: int = 100 << 20  # bytes that a reader may hold of one file besides its tensors
    parts: int = 300_000  # of one file
    depth: int = 8  # files within files
    unpacked: int = 16 << 30  # bytes that all compressed members may come to
    ratio: int = 1100  # of unpacked to packed bytes, of what unpacks to much; DEFLATE reaches 1032
    text: int = 16 << 20  # bytes of one text or pickle string
    nesting: int = 200  # of JSON, pickle and the like
    spent: Spent = field(default_factory=Spent, compare=False)  # shared by all levels of one file


Reader: TypeAlias = Callable[[Source, Limits], Iterator[Part]]


@dataclass(frozen=True)
class Format:
    """One kind of file: how it is told from others, and its reader."""

    name: str
    matches: Callable[[str, bytes], bool]  # by the file's name and its first 4096 bytes
    read: Reader
    pairwise: str = ""  # the function of formats.text that takes two such files at once instead
    beside: bool = False  # its files may refer to others that stand beside them: equal ones can differ in those
