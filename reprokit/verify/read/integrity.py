"""Whether what a verdict rests on is as it was at the run's end: predictions, printed text, outputs, snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from reprokit import rundir
from reprokit.capture import files
from reprokit.errors import RunDamaged, RunNotReadable
from reprokit.model.outputs import OutputFile
from reprokit.model.run import SealedFile, SnapshotFacts
from reprokit.rundir import CONSOLE, EVALUATION, KEPT, SNAPSHOTS, RunDirectory


@dataclass(frozen=True)
class IntegrityProblem:
    """A file that is not as it was at the end of the run."""

    name: str  # in the run directory
    what: str
    is_there: bool = True


def check(run: RunDirectory) -> None:
    """Raise RunDamaged where something was altered. What is missing is not compared, and for check to say."""
    for problem in problems(run):
        if problem.is_there:
            raise RunDamaged(f"{run.path / problem.name} {problem.what}; the run cannot be used")


def problems(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Everything that is not as it was."""
    yield from evaluation(run)
    yield from console(run)
    yield from kept_outputs(run)
    yield from snapshots(run)


def evaluation(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Compare the files of predictions and true values with their seal, what no line tells of included."""
    if run.run.evaluation is not None and rundir.seal_evaluation(run.path) != run.run.evaluation:
        yield IntegrityProblem(EVALUATION, "was altered since the run ended")


def console(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Compare the files of what was printed with their seal."""
    if run.run.console is not None and rundir.seal_console(run.path) != run.run.console:
        yield IntegrityProblem(CONSOLE, "was altered since the run ended")


def kept_outputs(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Yield each copy of an output that is not the file of which outputs.json has the digest."""
    found = run.outputs()
    for file in found.files if found is not None else ():
        name = f"{KEPT}/{file.kept}"
        if file.kept is not None and not run.has(name):
            yield IntegrityProblem(name, "is missing", is_there=False)
        elif file.kept is not None and not _is_copy(run, file):
            yield IntegrityProblem(name, f"is not the copy of {file.path[:500]!r} that it was")


def _is_copy(run: RunDirectory, file: OutputFile) -> bool:
    try:
        with os.fdopen(run.open_kept(file), "rb") as copy:
            is_as_large = os.fstat(copy.fileno()).st_size == file.size
            return is_as_large and rundir.sealed(copy) == SealedFile(size=file.size, digest=file.digest)
    except RunNotReadable:
        raise
    except RunDamaged:  # a link, a pipe
        return False


def snapshots(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Yield each snapshot that is not the one of which run.json has the digest."""
    there = set(files.names(run.path / SNAPSHOTS))
    for facts in run.run.snapshots:
        name = f"{SNAPSHOTS}/{facts.name[:200]}"
        if facts.directory:  # it is no part of the run
            continue
        if facts.digest and facts.name not in there:
            yield IntegrityProblem(name, "is missing", is_there=False)
        elif facts.digest and (what := _altered(run, facts)):
            yield IntegrityProblem(name, what)


def _altered(run: RunDirectory, facts: SnapshotFacts) -> str:
    try:
        snapshot = files.SnapshotFile(str(run.path / SNAPSHOTS / facts.name))
    except (files.SnapshotError, OSError) as error:
        return f"was altered: {error}"
    return "" if snapshot.header.get("digest") == facts.digest else "is not the one that the run left"
