"""Lists and reads the snapshots in a directory, for launcher and command line; their contents are untrusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reprokit.agent.capture.header import SnapshotHeader, in_words
from reprokit.agent.capture.settings import ASKED, UNAVAILABLE, Conditions
from reprokit.agent.capture.store import NOT_COMPARED, PARTIAL, PREFIX, SnapshotError, SnapshotFile, read_header
from reprokit.model.run import SnapshotFacts
from reprokit.run_files.rundir import SNAPSHOTS, RunDirectory

__all__ = [
    "ASKED",
    "NOT_COMPARED",
    "UNAVAILABLE",
    "Conditions",
    "SnapshotError",
    "SnapshotFile",
    "collect",
    "in_words",
    "names",
    "of_run",
    "partials",
    "place",
    "read_header",
]

MAX_SNAPSHOTS = 10_000
LARGEST_STEP = 1 << 53


def names(directory: Path) -> list[str]:
    """Return the names of the snapshots in a directory, sorted by step."""
    return sorted(_entries(directory, PREFIX))


def partials(directory: Path) -> list[str]:
    """Return the names of unfinished snapshots, whose process ended while it wrote them."""
    return sorted(_entries(directory, PARTIAL))


def _entries(directory: Path, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_SNAPSHOTS:
                    return
                if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                    yield entry.name
    except OSError:
        return


def place(run: Path, facts: SnapshotFacts) -> Path:
    """Return the path of a run's snapshot."""
    return Path(facts.directory or run / SNAPSHOTS) / facts.name


def collect(run: Path, fallback: Path | None = None) -> list[SnapshotFacts]:
    """Return the facts of each snapshot of a run, and of those in the fallback directory."""
    facts_list = [_facts(run / SNAPSHOTS, name) for name in names(run / SNAPSHOTS)]
    if fallback is None:
        return facts_list
    others = [_facts(fallback, name) for name in names(fallback)]
    return [*facts_list, *[msgspec.structs.replace(facts, directory=str(fallback)) for facts in others]]


def of_run(run: RunDirectory) -> list[SnapshotFacts]:
    """Return the snapshots from run.json; of a run that has not ended, from its directory."""
    return run.run.snapshots if run.run.capture is None or run.run.ended else collect(run.path)


def _facts(directory: Path, name: str) -> SnapshotFacts:
    try:
        header = read_header(str(directory / name))
    except (SnapshotError, OSError) as error:
        return SnapshotFacts(name=name, problem=str(error))
    facts = SnapshotHeader.read(header)
    return SnapshotFacts(
        name=name,
        process=str(header.get("process") or ""),
        step=facts.step if facts.step < LARGEST_STEP else 0,
        trigger=in_words(facts.trigger),
        digest=str(header.get("digest")),
        began_here=facts.trigger.began_here,
    )
