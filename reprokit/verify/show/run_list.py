"""The runs in a directory, in a line each; of every one run.json is read and nothing else."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprokit.errors import RunError, RunNotFound
from reprokit.model.run import FAILED
from reprokit.rundir import RUN, RunDirectory
from reprokit.screen import Cells, print_rows
from reprokit.verify.compare.status import ended, failed, seconds

FORMAT = 1
MAX_RUNS = 100_000
KINDS = {"record": "recording", "replay": "replay", "run": "run"}


@dataclass(frozen=True)
class ListedRun:
    """A run, or why it cannot be read."""

    path: Path
    run: RunDirectory | None
    problem: str = ""

    @property
    def state(self) -> str:
        """How it ended, or that it has not."""
        if self.run is None:
            return self.problem
        if self.run.in_progress:
            return "in progress"
        return "failed to start" if self.run.run.status == FAILED else ended(self.run.run) or "did not come to its end"


def runs(directory: Path) -> list[ListedRun]:
    """Return the runs right below a directory, the newest first; those that cannot be read come last."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise RunNotFound(f"{directory}: {error.strerror}; name a directory of runs") from None
    found = list(_read(directory, names[:MAX_RUNS]))
    return sorted(found, key=lambda one: (one.run is not None, one.run.run.started if one.run else ""), reverse=True)


def _read(directory: Path, names: list[str]) -> Iterator[ListedRun]:
    for name in names:
        path = directory / name
        if os.path.lexists(path / RUN):
            try:
                yield ListedRun(path, RunDirectory(path))
            except RunError as error:
                yield ListedRun(path, None, str(error))


def document(found: list[ListedRun]) -> dict[str, Any]:
    """Return the list as a JSON document."""
    return {"format": FORMAT, "runs": [_entry(one) for one in found]}


def _entry(one: ListedRun) -> dict[str, Any]:
    if one.run is None:
        return {"path": str(one.path), "problem": one.problem}
    run = one.run.run
    facts = {name: getattr(run, name) for name in ("run_id", "kind", "command", "status", "exit_code", "signal")}
    times = {name: getattr(run, name) for name in ("started", "ended", "duration")}
    replay_of = run.replay_of.run_id if run.replay_of is not None else None
    return {"path": str(one.path), "state": one.state, **facts, **times, "replay_of": replay_of}


def print_runs(directory: Path, found: list[ListedRun]) -> None:
    """Print it."""
    print_rows(headline(directory, found), [Cells(cells(one), _style(one)) for one in found])


def headline(directory: Path, found: list[ListedRun]) -> str:
    """Return how many there are."""
    return f"{directory}: {len(found)} run{'' if len(found) == 1 else 's'}"


def cells(one: ListedRun) -> tuple[str, ...]:
    """When, name, kind, how long, how it ended, and what was run."""
    if one.run is None:
        return "", one.path.name, "", "", one.problem, ""
    run = one.run.run
    lasted = seconds(run.duration) if run.duration is not None else ""
    return run.started, one.path.name, KINDS.get(run.kind, run.kind), lasted, one.state, shlex.join(run.command)


def _style(one: ListedRun) -> str:
    if one.run is None or failed(one.run.run) or one.run.unfinished:
        return "bold red"
    return "yellow" if one.run.in_progress else "green"
