"""Whether what a verdict rests on is what it was at the end of the run: predictions, kept outputs, snapshots."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from reprokit import rundir
from reprokit.capture import files
from reprokit.errors import RunDamaged
from reprokit.rundir import EVALUATION, KEPT, SNAPSHOTS, OutputFile, RunDirectory, SnapshotFacts

BLOCK = 1 << 20


def check(run: RunDirectory) -> None:
    """Raise RunDamaged where something was altered. What is missing is not compared, and for check to say."""
    evaluation(run)
    for problem in (*kept_outputs(run), *snapshots(run)):
        if problem.is_there:
            raise problem


class Problem(RunDamaged):
    """A file that is not as it was."""

    def __init__(self, name: str, what: str, run: RunDirectory, *, is_there: bool = True) -> None:
        super().__init__(f"{run.path / name} {what}; the run cannot be used")
        self.name, self.what, self.is_there = name, what, is_there


def evaluation(run: RunDirectory) -> None:
    """Compare the files of predictions and true values with their seal, what no line tells of included."""
    if run.run.evaluation is not None and rundir.seal_evaluation(run.path) != run.run.evaluation:
        raise Problem(EVALUATION, "was altered since the run ended", run)


def kept_outputs(run: RunDirectory) -> Iterator[Problem]:
    """Each copy of an output that is not the file of which outputs.json has the digest."""
    found = run.outputs()
    for file in found.files if found is not None else ():
        name = f"{KEPT}/{file.kept}"
        if file.kept is not None and not run.has(name):
            yield Problem(name, "is missing", run, is_there=False)
        elif file.kept is not None and _digest(run, file) != (file.size, file.digest):
            yield Problem(name, f"is not the copy of {file.path[:500]!r} that it was", run)


def _digest(run: RunDirectory, file: OutputFile) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with os.fdopen(run.open_kept(file), "rb") as copy:
        if os.fstat(copy.fileno()).st_size == file.size:
            for block in iter(lambda: copy.read(BLOCK), b""):
                digest.update(block)
                size += len(block)
    return size, f"sha256:{digest.hexdigest()}"


def snapshots(run: RunDirectory) -> Iterator[Problem]:
    """Each snapshot that is not the one of which run.json has the digest."""
    there = set(files.names(run.path / SNAPSHOTS))
    for facts in run.run.snapshots:
        name = f"{SNAPSHOTS}/{facts.name[:200]}"
        if facts.digest and facts.name not in there:
            yield Problem(name, "is missing", run, is_there=False)
        elif facts.digest and (what := _altered(run, facts)):
            yield Problem(name, what, run)


def _altered(run: RunDirectory, facts: SnapshotFacts) -> str:
    try:
        snapshot = files.SnapshotFile(str(run.path / SNAPSHOTS / facts.name))
    except (files.SnapshotError, OSError) as error:
        return f"was altered: {error}"
    return "" if snapshot.header.get("digest") == facts.digest else "is not the one that the run left"
