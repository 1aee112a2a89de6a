"""Compares the stores of arrays that two runs wrote, such as Zarr's, by their arrays instead of file by file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeAlias

from reprokit.core.difference import Difference
from reprokit.core.errors import ReprokitError
from reprokit.diff.elements import CompareOptions
from reprokit.diff.sources import FileSource, blocks
from reprokit.diff.stores import ArrayStore, common_stores, compare_stores
from reprokit.model.outputs import OutputFile
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.file_bookkeeping import FileBookkeeping
from reprokit.verify.categories.match import RunPair
from reprokit.verify.read.normalization import CONTENTS

LARGEST = 4 << 30  # bytes of a store of one run
Files: TypeAlias = "Mapping[str, list[OutputFile]]"  # by their path in the comparison
OpenOutput: TypeAlias = "Callable[[RunDirectory, OutputFile], FileSource | None]"  # with the recorded digest


def by_arrays(
    runs: RunPair, leaves: list[Difference], sides: tuple[Files, Files], links: Iterable[str], opened: OpenOutput
) -> list[Difference]:
    """Return the leaves of all outputs, with one for each store of which files differ and whose files are all known."""
    linked, differing = tuple(links), {leaf.name for leaf in leaves if leaf.verdict.differs}
    for store in common_stores(*sides):
        names = store.files[0] | store.files[1]
        base = os.path.join(store.directory, "")
        if (
            names.isdisjoint(differing)
            or any(link.startswith(base) for link in linked)
            or _are_declared(runs, names, sides)
        ):
            continue
        tree = _compared(runs, store, sides, opened)
        if tree is not None:
            leaves = [*(leaf for leaf in leaves if leaf.name not in names), tree]
    return leaves


def _are_declared(runs: RunPair, names: Iterable[str], sides: tuple[Files, Files]) -> bool:
    """Return whether rules of the user are for single files of a store, by which these are then judged."""
    return any(
        runs.declared.of_file(name, *(file.path for side in sides for file in side.get(name, ()))) is not None
        for name in names
    )


def _compared(runs: RunPair, store: ArrayStore, sides: tuple[Files, Files], opened: OpenOutput) -> Difference | None:
    """Return the comparison of a store; None if files of it are gone, or it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="reprokit-") as name, suppress(OSError, ValueError, ReprokitError):
        places = Path(name, "left"), Path(name, "right")
        for run, place, files, names in zip(runs.directories, places, sides, store.files, strict=True):
            if not _put(
                run, place, {os.path.relpath(path, store.directory or "."): files[path] for path in names}, opened
            ):
                return None
        judge, accepted = FileBookkeeping(store.name, runs.contexts), runs.accepted("outputs")
        tree = compare_stores(store, *places, CompareOptions(accepted, accepted, judge=judge))
        runs.normalizations.add(*([] if tree.verdict.not_bitwise else [CONTENTS]))
        return tree
    return None


def _put(run: RunDirectory, place: Path, files: Files, opened: OpenOutput) -> bool:
    """Put copies of the files of a run's store below a directory; return False if not all are known."""
    if sum(file.size for same in files.values() for file in same) > LARGEST:
        return False
    for name, same in files.items():
        source = opened(run, same[0]) if len(same) == 1 and ".." not in name.split("/") else None
        if source is None:
            return False
        with closing(source):
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as copy:
                for block in blocks(source):
                    copy.write(block)
    return True
