"""Files by which one run changes the next: what the first wrote, and only the second read."""

from __future__ import annotations

import os
from collections.abc import Iterator

from reprokit.errors import RunError
from reprokit.rundir import READ, RunDirectory

MAX_PATHS = 64 << 20  # bytes of the list of files that a run read
SHOWN = 3


def between(first: RunDirectory, second: RunDirectory) -> Iterator[str]:
    """What must be said where the second run went on from what the first left behind."""
    found = sorted(_written(first) & (_read(second) - _read(first)))
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        names = ", ".join(os.path.relpath(path, first.run.working_directory) for path in found[:SHOWN])
        yield (
            f"a run read what an earlier one wrote ({names}{more}), so it did not start from the same state: remove"
            " such files before each run, or let the training not look for them"
        )


def _written(run: RunDirectory) -> set[str]:
    files = run.outputs()
    return {os.path.join(run.run.working_directory, file.path) for file in files.files} if files else set()


def _read(run: RunDirectory) -> set[str]:
    try:
        data = run.read(READ, MAX_PATHS) if run.has(READ) else b""
    except RunError:
        return set()
    return {os.fsdecode(line) for line in data.splitlines()}
