"""The parts of a file that are compared: tensors, values, bytes, nested files, and the noise of its container.

A reader of a format turns a source of bytes into parts, lazily and in the order of the file. It avoids copies:
a tensor refers to its bytes in the source. Names are paths within the file, with "/" between levels.
A reader raises errors.ArtifactDamaged where a file violates its format or exceeds the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from reprokit.core.difference import BookkeepingKind, Difference, IgnoredCount
from reprokit.core.tolerance import Tolerance


class Source(Protocol):
    """Bytes with random access: a file, a member of an archive, or a slice of either."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset` on; fewer only at the end."""


class Siblings:
    """The files in the same directory or archive as a source, which has them as its attribute `beside`."""

    def __init__(self, name: str, find: Callable[[str], Source | None]):
        self.name = name  # of the source itself
        self.opened: dict[str, Source] = {}
        self._find = find

    def open(self, name: str) -> Source | None:
        """Open the file of this name; return None if there is none or it cannot be read."""
        if name not in self.opened and name not in ("", ".", "..") and "/" not in name:
            source = self._find(name)
            if source is not None:
                self.opened[name] = source
        return self.opened.get(name)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor: elements of one dtype, and where they are in a source."""

    name: str
    dtype: str  # NumPy's name, or bfloat16, float8_e4m3fn, float8_e5m2, ...
    shape: tuple[int, ...]
    source: Source
    offset: int = 0  # of the first element in the source, in bytes
    strides: tuple[int, ...] | None = None  # in elements; None: contiguous in C order
    big_endian: bool = False
    meaning: str = ""  # of elements that are shown as texts or dates: see dtypes.shown


@dataclass(frozen=True, slots=True)
class Value:
    """A small value that is no tensor, as a text that represents it exactly, with its type if that matters."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Blob:
    """Uninterpreted bytes."""

    name: str
    source: Source


@dataclass(frozen=True, slots=True)
class NestedFile:
    """A file nested in another, compared like a file of its own."""

    name: str
    source: Source
    check: str = ""  # the container's checksum of it: if equal bytes have different ones, a container is damaged


@dataclass(frozen=True, slots=True)
class Noise:
    """What a container adds, such as a time stamp or the order of its members; never counted as a difference."""

    name: str
    text: str
    kind: BookkeepingKind | None = None  # of what says something of the run that wrote it


Part: TypeAlias = TensorPart | Value | Blob | NestedFile | Noise


class LineJudge(Protocol):
    """Judges the pairs of lines of two texts, from the first pair on."""

    def line(self, title: str, left: str, right: str) -> Difference | None:
        """Return the difference of two lines if it is bookkeeping alone."""

    @property
    def advice(self) -> str:
        """Return what to do where the last pair only looked like bookkeeping; else an empty text."""


class BookkeepingJudge(Protocol):
    """Tells values that differ in every run, such as times, from results: a part of comparing runs, not files."""

    def value(
        self, title: str, path: str, texts: tuple[str, str], beside: tuple[str, ...] = (), *, is_row: bool = False
    ) -> Difference | None:
        """Return the difference of two values if it is bookkeeping.

        The path is that within the file, the last key being the value's name; `beside` are the keys next to it.
        """

    def numbers(self, title: str, path: str, texts: tuple[str, str], count: int) -> Difference | None:
        """Return the difference of two lists of numbers if they are bookkeeping."""

    def advice(self, path: str, texts: tuple[str, str]) -> str:
        """Return what to do where two values only look like bookkeeping; else an empty text."""

    def unnamed(self, place: str) -> str:
        """Return what to do where a value without a name, such as that of a column, is no result."""

    def lines(self) -> LineJudge:
        """Return a judge of the lines of the file."""


class DeclaredParts(Protocol):
    """Decides which differing parts of a file are ignored."""

    def __call__(
        self, paths: Sequence[str], left: Part | None, right: Part | None, *, of_model: bool, is_bookkeeping: bool
    ) -> IgnoredCount | None:
        """Return the rule that covers a part, by its paths, which begin with the name of the outermost file.

        Bookkeeping needs no rule, though one may cover it.
        """


@dataclass
class ResourceUse:
    """The resources that a file and all files nested in it have used so far."""

    unpacked: int = 0  # bytes
    parts: int = 0
    compared: int = 0  # bytes of tensors


@dataclass(frozen=True)
class Limits:
    """Bounds for untrusted files; exceeding one is an error, so that no file causes a long wait."""

    header: int = 100 << 20  # bytes that a reader may keep in memory for one file, tensors excluded
    parts: int = 300_000  # of one file
    depth: int = 8  # levels of nested files
    unpacked: int = 16 << 30  # bytes of all compressed members together after decompression
    ratio: int = 1100  # largest ratio of unpacked to packed bytes for large outputs; DEFLATE reaches 1032
    text: int = 16 << 20  # bytes of one text or pickle string
    nesting: int = 200  # levels within JSON, pickles and the like
    spent: ResourceUse = field(
        default_factory=ResourceUse, compare=False
    )  # shared by a file and all files nested in it


@dataclass(frozen=True)
class CompareOptions:
    """How to compare: bit for bit, or within a tolerance."""

    tolerance: Tolerance | None = None  # of tensors
    values: Tolerance | None = None  # of single numbers in text
    limits: Limits = field(default_factory=Limits)
    declared: DeclaredParts | None = None  # what of a file is ignored where it differs
    judge: BookkeepingJudge | None = None  # None: no value is bookkeeping


Reader: TypeAlias = Callable[[Source, Limits], Iterator[Part]]
PairComparison: TypeAlias = Callable[[str, Source, Source, CompareOptions], Difference]  # the name comes first


@dataclass(frozen=True)
class Format:
    """A file format: how files of it are detected, and its reader."""

    name: str
    matches: Callable[[str, bytes], bool]  # takes the file's name and its first 4096 bytes
    read: Reader
    pairwise: PairComparison | None = None  # compares two such files, which are then not read
    is_read_alone: bool = False  # they are read all the same where no judge is asked, if they can be
    is_read_for_judge: bool = False  # likewise where one is
    has_siblings: bool = False  # its files may refer to files beside them, so equal files can differ in those
    is_general: bool = False  # more specific formats are based on it
    is_model: bool = False  # its tensors are weights or states of optimizers
    root: str = ""  # how its reader names the whole document, above all values
