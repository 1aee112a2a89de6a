"""Keeps in a run directory what questions found: where two runs part, and what a resumed training lacks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reprokit.model.divergence import LocatedDivergence
from reprokit.model.resumption import ResumeFinding
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory


def write_divergence(run: RunDirectory, divergence: LocatedDivergence) -> None:
    """Write divergence.json into a run directory; raises CannotWriteRun."""
    rundir.write_json(run.path / rundir.DIVERGENCE, divergence)


def divergence(run: RunDirectory) -> LocatedDivergence | None:
    """Return the content of divergence.json; None if the run has none."""
    return run.decode(rundir.DIVERGENCE, LocatedDivergence) if run.has(rundir.DIVERGENCE) else None


def write_resumption(directory: Path, finding: ResumeFinding) -> None:
    """Write the finding into the directory of the whole run, without the paths of the other runs."""
    rundir.write_json(directory / rundir.RESUMPTION, msgspec.structs.replace(finding, runs={}))


def resumption(run: RunDirectory) -> ResumeFinding | None:
    """Return the finding; None if the run is not the whole training of a resume study."""
    return run.decode(rundir.RESUMPTION, ResumeFinding) if run.has(rundir.RESUMPTION) else None
