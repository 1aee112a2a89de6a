"""Completes values of options in shells: patches, frameworks, steps and tensors. Runs are completed by their type."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import click


def patches(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return the patches that may be meant, after those that are given already."""
    from reprokit.patches.catalogue import CATALOGUE

    return _listed(("auto", "none", *(patch.id for patch in CATALOGUE)), incomplete)


def frameworks(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return the frameworks of which there are facts."""
    from reprokit import knowledge

    return _beginning(sorted({fact.framework for fact in knowledge.load()}), incomplete)


def tensors(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return collections of tensors."""
    from reprokit.model.tensor_selection import ALL, COLLECTIONS

    return _listed((*COLLECTIONS, ALL), incomplete)


def steps(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return all steps of the run that is named, or every tenth."""
    return _beginning([*_all_steps(context), "every=10"], incomplete)


def _all_steps(context: click.Context) -> Iterable[str]:
    """Yield the range of steps that the trail of the recording has that is named, if it can be read."""
    from reprokit.core.errors import ReprokitError
    from reprokit.run_files import trails
    from reprokit.run_files.rundir import RunDirectory

    with suppress(ReprokitError, OSError):
        # click parses no arguments where the option before the cursor lacks its value.
        of_run = next(parameter.type for parameter in context.command.params if parameter.name == "run")
        run = context.params.get("run") or (of_run.convert(context.args[0], None, None) if context.args else None)
        files = trails.read(RunDirectory(run)) if run is not None else ()
        if counts := [series.count for file in files for series in file.series]:
            yield f"0-{max(counts) - 1}"


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that the last of several may be, behind the others."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(names, last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
