"""Compares the snapshots of failed steps that two runs saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.capture import files
from reprokit.core.difference import Difference, compared, group, information, missing
from reprokit.model.run import SnapshotFacts
from reprokit.run_files.rundir import SNAPSHOTS, RunDirectory
from reprokit.verify.categories.match import RunPair

SHOWN = 6
IGNORED = frozenset(["check", "digest"])


def compare(runs: RunPair) -> Iterator[Difference]:
    """Yield a leaf for each snapshot, if a run was asked to capture."""
    if any(run.capture is not None for run in runs.files):
        yield _compared(*runs.directories)


def _compared(left: RunDirectory, right: RunDirectory) -> Difference:
    sides = _by_name(left), _by_name(right)
    if (left.run.capture is None) != (right.run.capture is None) and any(sides):
        return group("snapshots", (_only_one_captured(left, *sides),))
    names = sorted({*sides[0], *sides[1]})
    return group("snapshots", tuple(_leaf(name, left, right, sides[0].get(name), sides[1].get(name)) for name in names))


def comparable(run: RunDirectory) -> bool:
    """Return whether a run saved any snapshot."""
    return any(facts.digest for facts in files.of_run(run))


def _by_name(run: RunDirectory) -> dict[str, SnapshotFacts]:
    return {facts.name: facts for facts in files.of_run(run)}


def _only_one_captured(left: RunDirectory, *sides: dict[str, SnapshotFacts]) -> Difference:
    counts = [f"{len(side)} snapshots" if side else "not asked to capture" for side in sides]
    side = "left" if left.run.capture is None else "right"
    return information("captured", counts[0], counts[1], f"the {side} run was not asked to capture")


def _leaf(
    name: str,
    left: RunDirectory,
    right: RunDirectory,
    left_facts: SnapshotFacts | None,
    right_facts: SnapshotFacts | None,
) -> Difference:
    if left_facts is None or right_facts is None:
        return missing(name, _text(left_facts), _text(right_facts))
    if left_facts.problem or right_facts.problem:
        return missing(name, _text(left_facts), _text(right_facts), "a snapshot cannot be read")
    is_same = left_facts.digest == right_facts.digest
    meaning = "" if is_same else _meaning((left, left_facts), (right, right_facts))
    return compared(name, _text(left_facts), _text(right_facts), meaning, same=is_same)


def _text(facts: SnapshotFacts | None) -> str:
    """Return a snapshot in a few words that distinguish it from another."""
    if facts is None or facts.problem:
        return ""
    return f"{facts.trigger}, digest {facts.digest.partition(':')[2][:12]}"


def _meaning(*sides: tuple[RunDirectory, SnapshotFacts]) -> str:
    """Return which parts of two snapshots' headers differ; no path named by a run is followed."""
    for run, facts in sides:
        if facts.directory or facts.name not in files.names(run.path / SNAPSHOTS):
            return "the captured states differ; a snapshot does not lie in its run, and is not looked at"
    try:
        headers = [files.read_header(str(run.path / SNAPSHOTS / facts.name)) for run, facts in sides]
    except (files.SnapshotError, OSError):
        return "the captured states differ; a snapshot cannot be read any more"
    differing = list(_differing(*headers))
    more = ", ..." if len(differing) > SHOWN else ""
    return f"the captured states differ in: {', '.join(differing[:SHOWN])}{more}; reprokit diff compares the tensors"


def _differing(left: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    for key in sorted({*left, *right} - IGNORED - files.NOT_COMPARED):
        if left.get(key) != right.get(key):
            yield "the bytes of tensors" if key == "tensors" else key
