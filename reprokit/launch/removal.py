"""Removes runs, and says of which kept replays the recordings go or stay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from reprokit.errors import ReprokitError, RunError
from reprokit.launch.rundirectory import delete, require_run, shown
from reprokit.printable import printable
from reprokit.run_home import home_of, newest_first
from reprokit.rundir import RunDirectory


def remove_runs(paths: list[Path]) -> Iterator[str]:
    """Remove these runs, all or, where one must not be, none; yields what there is to say."""
    for path in paths:
        require_run(path)
    going = {os.path.realpath(path) for path in paths}
    for home in sorted({Path(path).parent for path in going}):
        runs = newest_first(home)
        gone = {run.run.run_id: run for run in runs if os.path.realpath(run.path) in going}
        for run in runs:
            asked = run.run.replay_of
            if asked is not None and asked.run_id in gone and run.run.run_id not in gone:
                yield printable(f"{run.path.name} stays without its recording {gone[asked.run_id].path.name}")
    for path in paths:
        yield from _remove(path)


def _remove(path: Path) -> Iterator[str]:
    elsewhere: set[str] = set()
    with suppress(RunError):  # a damaged run
        elsewhere = {found.directory for found in RunDirectory(path).run.snapshots if found.directory}
    delete(path)
    yield printable(f"removed {shown(path)}")
    for directory in sorted(elsewhere):
        yield printable(f"its snapshots in {directory} stay")


def collect(keep: int, older: timedelta, *, dry_run: bool) -> Iterator[str]:
    """Remove runs of the nearest .reprokit beyond the newest `keep` and of more than this age; yields what is done."""
    home = home_of(Path())
    runs = newest_first(home) if home.is_dir() else []
    going = {run.run.run_id: run for run in runs[keep:] if _is_older(run, older) and not run.in_progress}
    for run in runs:
        asked = run.run.replay_of
        if asked is not None and asked.run_id in going and run.run.run_id not in going:
            yield printable(f"kept {going.pop(asked.run_id).path.name}: {run.path.name} is a replay of it")
    removed = 0
    for run in going.values():
        try:
            require_run(run.path)
            yield from [printable(f"would remove {shown(run.path)}")] if dry_run else _remove(run.path)
            removed += 1
        except ReprokitError as error:
            yield printable(f"kept {run.path.name}: {error}")
    yield f"{removed} of {len(runs)} runs {'would be removed' if dry_run else 'removed'}"


def _is_older(run: RunDirectory, age: timedelta) -> bool:
    with suppress(ValueError):
        started = datetime.strptime(run.run.started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
        return datetime.now(timezone.utc) - started >= age
    return False
