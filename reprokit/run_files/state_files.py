"""Finds state that one run hands to the next in files: what was there already when a run read it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from reprokit.core.printable import listed, printable
from reprokit.run_files import names
from reprokit.run_files.rundir import RunDirectory

SHOWN = 3  # files that are named
NEVER: Final = ("/dev/", "/proc/", "/run/", "/sys/", "/var/run/")
# Downloaded data sets, installed packages, and what experiment trackers keep of runs.
KEPT_ON_PURPOSE: Final = frozenset(
    {
        ".config",
        ".reprokit",
        "dist-packages",
        "fontconfig",
        "mlflow.db",
        "mlruns",
        "nltk_data",
        "scikit_learn_data",
        "site-packages",
        "tensorflow_datasets",
        "wandb",
    }
)
INDUCTOR: Final = "torchinductor_"  # and the user's name: PyTorch's compiled code


def read_first(run: RunDirectory, *, of_libraries: bool = False) -> set[str]:
    """Return the files that a run read before it wrote them, or without writing them, by their absolute names.

    Not what a replay had from its recording: both started from it. Files in caches of libraries are no state, as they
    are to be found again; they are returned alone where they are asked for.
    """
    is_wanted = _is_of_library if of_libraries else _can_be_state
    written = names.written_at(run.path)
    restored = set(run.run.start.restored) if run.run.start is not None else set()
    read = {
        path: at
        for path, at in names.read_at(run.path).items()
        if is_wanted(name := shown(path, run.run.working_directory)) and name not in restored
    }
    if run.run.bundled is not None:  # its lists were redacted, and are not as long as they were
        read = dict.fromkeys(read)
    return {path for path, at in read.items() if not _is_written_before(path, at, written)}


def made(run: Path) -> set[str]:
    """Return the files that a run wrote before it read them, or without reading them, by their absolute names."""
    read, written = names.read_at(run), names.written_at(run)
    return {path for path in written if path not in read or _is_written_before(path, read[path], written)}


def written(run: Path, among: set[str]) -> set[str]:
    """Return those of these files that a run wrote or put in place."""
    moments = names.written_at(run)
    return {path for path in among if any(name in moments for name in _and_above(path))}


def between(first: RunDirectory, second: RunDirectory) -> list[str]:
    """Return what the second run read that the first had written before, named from the working directory."""
    shared = written(first.path, read_first(second))
    return [shown(path, second.run.working_directory) for path in sorted(shared) if not is_fresh(path, second)]


def shared_caches(left: RunDirectory, right: RunDirectory) -> list[str]:
    """Return what one of two runs, whichever was later, read from caches of libraries that the other had written."""
    first, second = (right, left) if _is_later(left, right) else (left, right)
    shared = written(first.path, read_first(second, of_libraries=True))
    return [shown(path, second.run.working_directory) for path in sorted(shared)]


def _is_later(left: RunDirectory, right: RunDirectory) -> bool:
    return left.run.replay_of is not None or left.run.started > right.run.started


def handed_on(left: RunDirectory, right: RunDirectory) -> list[str]:
    """Return what one of two runs, whichever was later, read that the other had written before."""
    return between(right, left) if _is_later(left, right) else between(left, right)


def sentences(left: RunDirectory, right: RunDirectory) -> Iterator[str]:
    """Yield what must be said where one of two runs went on from what the other left behind."""
    for run in (left, right):
        if run.run.start is not None and run.run.start.in_place:
            files = [printable(file.words) for file in run.run.start.in_place]
            yield f"the replay {run.path.name} found files otherwise than its recording did: {listed(files, SHOWN)}"
    shared = handed_on(left, right)
    if shared:
        yield (
            f"a run read files that the other writes, before it wrote them itself ({listed(shared, SHOWN)}): if the"
            " other left them, they did not start from the same state; remove such files before each run"
        )
    if caches := shared_caches(left, right):
        count = "1 file" if len(caches) == 1 else f"{len(caches):,} files"
        yield f"a run read {count} from caches of libraries that the other wrote there, first {caches[0]}"


def is_fresh(path: str, run: RunDirectory) -> bool:
    """Return whether it lies in a copy that was made for this run alone, in which no other run wrote."""
    return bool(run.run.fresh) and path.startswith(run.run.fresh.rstrip("/") + "/")


def shown(path: str, directory: str) -> str:
    """Return the file's name from the working directory, where it lies below it."""
    return os.path.relpath(path, directory) if path.startswith(directory.rstrip("/") + "/") else path


def _can_be_state(path: str) -> bool:
    parts = path.split("/")
    is_kept = not KEPT_ON_PURPOSE.isdisjoint(parts) or any(part.startswith(INDUCTOR) for part in parts)
    is_kept = is_kept or _is_of_library(path) or names.is_tools(f"/{path}")
    return not is_kept and (not path.startswith(NEVER) or path.startswith(names.SHARED_MEMORY))


def _is_of_library(path: str) -> bool:
    return names.is_libraries(f"/{path}")


def _is_written_before(path: str, at: int | None, written: dict[str, int]) -> bool:
    """Return whether the run wrote it before it read it; where nobody noted the order, that is taken for granted."""
    first = min((written[name] for name in _and_above(path) if name in written), default=None)
    return first is not None and (at is None or first < at)


def _and_above(path: str) -> Iterator[str]:
    """Yield the name, and those of the directories above it, of which one may have been put in place."""
    yield path
    while (above := os.path.dirname(path)) != path:
        path = above
        yield path
