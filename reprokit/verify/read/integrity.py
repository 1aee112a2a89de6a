"""Detects changes since the run's end of what verdicts rest on: predictions, printed text, outputs, snapshots."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from reprokit.capture import files
from reprokit.core.errors import RunDamaged, RunNotReadable
from reprokit.model.outputs import OutputFile
from reprokit.model.run import SealedFile, SnapshotFacts
from reprokit.run_files import rundir
from reprokit.run_files.rundir import CONSOLE, EVALUATION, FOUND, KEPT, SNAPSHOTS, RunDirectory


@dataclass(frozen=True)
class IntegrityProblem:
    """A file that was changed or removed since the end of the run."""

    name: str  # relative to the run directory
    what: str  # the problem, in words
    exists: bool = True


def check(run: RunDirectory) -> None:
    """Raise RunDamaged if a file was altered. Missing files are not compared; `reprokit check` reports them."""
    for problem in problems(run):
        if problem.exists:
            raise RunDamaged(f"{run.path / problem.name} {problem.what}; the run cannot be used")


def problems(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Yield each file that was changed or removed since the end of the run."""
    yield from evaluation(run)
    yield from console(run)
    yield from kept_outputs(run)
    yield from snapshots(run)


def evaluation(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Compare the files of predictions and true values with their seal, including those that no line refers to."""
    if run.run.evaluation is not None and rundir.seal_evaluation(run.path) != run.run.evaluation:
        yield IntegrityProblem(EVALUATION, "was altered since the run ended")


def console(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Compare the files of printed text with their seal."""
    if run.run.console is not None and rundir.seal_console(run.path) != run.run.console:
        yield IntegrityProblem(CONSOLE, "was altered since the run ended")


def kept_outputs(run: RunDirectory, *, is_checked: bool = False) -> Iterator[IntegrityProblem]:
    """Yield each copy of an output that is missing or, unless check() found none, does not match its digest."""
    outputs = run.outputs()
    for file in outputs.files if outputs is not None else ():
        name = f"{KEPT}/{file.kept}"
        if file.kept is not None and not run.has(name):
            yield IntegrityProblem(name, "is missing", exists=False)
        elif file.kept is not None and not (is_checked or _is_copy(run, file)):
            yield IntegrityProblem(name, f"is not the copy of {file.path[:500]!r} that it was")


def found_files(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Yield each copy of what a recording found that is missing or does not match its digest."""
    outputs = run.outputs()
    for file in outputs.found if outputs is not None else ():
        name = f"{FOUND}/{file.kept}"
        if file.kept is not None and not run.has(name):
            yield IntegrityProblem(name, "is missing", exists=False)
        elif file.kept is not None and not _is_sealed(partial(run.open_found, file.kept), file.size, file.digest):
            yield IntegrityProblem(name, f"is not the copy of {file.path[:500]!r} that it was")


def _is_copy(run: RunDirectory, file: OutputFile) -> bool:
    return _is_sealed(partial(run.open_kept, file), file.size, file.digest)


def _is_sealed(opened: Callable[[], int], size: int, digest: str | None) -> bool:
    try:
        with os.fdopen(opened(), "rb") as copy:
            is_as_large = os.fstat(copy.fileno()).st_size == size
            return digest is not None and is_as_large and rundir.sealed(copy) == SealedFile(size=size, digest=digest)
    except RunNotReadable:
        raise
    except RunDamaged:  # the copy is a symbolic link or a pipe
        return False


def snapshots(run: RunDirectory) -> Iterator[IntegrityProblem]:
    """Yield each snapshot that is missing or does not match its digest in run.json."""
    existing_names = set(files.names(run.path / SNAPSHOTS))
    for facts in run.run.snapshots:
        name = f"{SNAPSHOTS}/{facts.name[:200]}"
        if facts.directory:  # saved by --snapshot-fallback, outside of the run directory
            continue
        if facts.digest and facts.name not in existing_names:
            yield IntegrityProblem(name, "is missing", exists=False)
        elif facts.digest and (what := _altered(run, facts)):
            yield IntegrityProblem(name, what)


def _altered(run: RunDirectory, facts: SnapshotFacts) -> str:
    try:
        snapshot = files.SnapshotFile(str(run.path / SNAPSHOTS / facts.name))
    except (files.SnapshotError, OSError) as error:
        return f"was altered: {error}"
    return "" if snapshot.header.get("digest") == facts.digest else "is not the one that the run left"
