"""Removes runs, and reports replays that lose their recording."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from reprokit.core.errors import ReprokitError, RunError
from reprokit.core.printable import printable
from reprokit.run.rundirectory import delete, require_run, shown
from reprokit.run_files.home import home_of, newest_first
from reprokit.run_files.rundir import RunDirectory


def remove_runs(paths: list[Path]) -> Iterator[str]:
    """Remove these runs, or none if one may not be removed; yield messages."""
    for path in paths:
        require_run(path)
    real_paths = {os.path.realpath(path) for path in paths}
    for home in sorted({Path(path).parent for path in real_paths}):
        runs = newest_first(home)
        removed_by_id = {run.run.run_id: run for run in runs if os.path.realpath(run.path) in real_paths}
        for run in runs:
            replay_of = run.run.replay_of
            if replay_of is not None and replay_of.run_id in removed_by_id and run.run.run_id not in removed_by_id:
                yield printable(
                    f"{run.path.name} stays without its recording {removed_by_id[replay_of.run_id].path.name}"
                )
    for path in paths:
        yield from _remove(path)


def _remove(path: Path) -> Iterator[str]:
    other_directories: set[str] = set()
    with suppress(RunError):  # a damaged run
        other_directories = {snapshot.directory for snapshot in RunDirectory(path).run.snapshots if snapshot.directory}
    delete(path)
    yield printable(f"removed {shown(path)}")
    for directory in sorted(other_directories):
        yield printable(f"its snapshots in {directory} stay")


def collect(keep: int, older: timedelta, *, dry_run: bool) -> Iterator[str]:
    """Remove runs of the nearest .reprokit, but the newest `keep` and those younger than `older`; yield messages."""
    home = home_of(Path())
    runs = newest_first(home) if home.is_dir() else []
    removable = {run.run.run_id: run for run in runs[keep:] if _is_older(run, older) and not run.in_progress}
    for run in runs:
        replay_of = run.run.replay_of
        if replay_of is not None and replay_of.run_id in removable and run.run.run_id not in removable:
            yield printable(f"kept {removable.pop(replay_of.run_id).path.name}: {run.path.name} is a replay of it")
    removed = 0
    for run in removable.values():
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
