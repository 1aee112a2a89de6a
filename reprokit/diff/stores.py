"""Stores: directories whose files hold arrays together, which are compared by their arrays: OCDBT and Zarr."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from reprokit.core.difference import Difference
from reprokit.diff.compare import compare_parts
from reprokit.diff.elements import CompareOptions, Limits, Part
from reprokit.diff.formats.library_process import ParsingLibrary
from reprokit.diff.sources import BytesSource

MOST_STORES = 1000  # of a directory
MANIFEST = "manifest.ocdbt"
OCDBT_PARTS = ("d/", "ocdbt.process_")  # files and directories of such a store besides the manifest
ZARR_ARRAYS, ZARR_METADATA = (".zarray", "zarr.json"), (".zgroup", ".zattrs", ".zmetadata")
_CHUNK = re.compile(r"c|(?:c[/.])?[0-9]+(?:[/.][0-9]+)*")  # below the directory of an array


@dataclass(frozen=True)
class StoreFormat:
    """A format of stores: the files that tell their directories, and which files below these are theirs."""

    title: str
    marks: tuple[str, ...]
    own_files: Callable[[list[str]], Iterable[str]]  # of the paths of all files below the directory
    library: ParsingLibrary


@dataclass(frozen=True)
class ArrayStore:
    """A store that both sides have: its directory, "" for the one that is compared, and the files of each side."""

    format: StoreFormat
    directory: str
    files: tuple[frozenset[str], frozenset[str]]  # their paths, and those of directories among them

    @property
    def name(self) -> str:
        """Return the name of the comparison: that of the only mark, or of the directory."""
        marks = self.format.marks
        return os.path.join(self.directory, marks[0]) if len(marks) == 1 else self.directory or "."

    def parts(self, side: int, place: Path, limits: Limits) -> Iterator[Part]:
        """Yield the arrays and other entries of one side's store, whose files are below this directory."""
        names = sorted(os.path.relpath(name, self.directory or ".") for name in self.files[side])
        data = "\0".join(names).encode("utf-8", "surrogateescape")
        return self.format.library.read(BytesSource(data), limits, str(place))


def compare_stores(store: ArrayStore, left: Path, right: Path, options: CompareOptions) -> Difference:
    """Compare a store in two directories array by array; raises ArtifactDamaged if it cannot be read."""
    options = replace(options, limits=replace(options.limits, spent=type(options.limits.spent)()))
    left_parts, right_parts = (store.parts(side, place, options.limits) for side, place in enumerate((left, right)))
    return compare_parts(store.name, left_parts, right_parts, options)


def common_stores(left: Iterable[str], right: Iterable[str]) -> list[ArrayStore]:
    """Return up to MOST_STORES stores that both sides have, by the names of their files; none is within another."""
    sides = sorted(left), sorted(right)
    stores: list[ArrayStore] = []
    covered: set[str] = set()
    for format_ in FORMATS:
        roots = [{os.path.dirname(name) for name in side if os.path.basename(name) in format_.marks} for side in sides]
        for directory in sorted(roots[0] & roots[1]):
            if directory in covered or len(stores) == MOST_STORES:
                continue
            base = os.path.join(directory, "")
            files = [frozenset(base + name for name in format_.own_files(_below(base, side))) for side in sides]
            covered.update(os.path.dirname(name) for name in files[0] | files[1])
            stores.append(ArrayStore(format_, directory, (files[0], files[1])))
    return stores


def _below(base: str, names: list[str]) -> list[str]:
    """Return the names below a directory, without its own, from sorted names."""
    start = bisect_left(names, base)
    end = bisect_left(names, base[:-1] + chr(ord("/") + 1)) if base else len(names)
    return [name.removeprefix(base) for name in names[start:end]]


def _of_ocdbt(files: list[str]) -> Iterator[str]:
    return (name for name in files if name == MANIFEST or f"{name}/".startswith(OCDBT_PARTS))


def _of_zarr(files: list[str]) -> Iterator[str]:
    arrays = {os.path.dirname(name) for name in files if os.path.basename(name) in ZARR_ARRAYS}
    for name in files:
        parts = name.split("/")
        places = (("/".join(parts[:number]), "/".join(parts[number:])) for number in range(len(parts)))
        if parts[-1] in (*ZARR_ARRAYS, *ZARR_METADATA) or any(
            place in arrays and _CHUNK.fullmatch(rest) for place, rest in places
        ):
            yield name


def _library(title: str, function: str) -> ParsingLibrary:
    return ParsingLibrary(title, "tensorstore", "reprokit.diff.store_process", function)


FORMATS = (
    StoreFormat("OCDBT", (MANIFEST,), _of_ocdbt, _library("OCDBT", "read")),
    StoreFormat("Zarr", (".zgroup", *ZARR_ARRAYS), _of_zarr, _library("Zarr", "zarr")),
)
