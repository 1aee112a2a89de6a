"""Handles a run's snapshots in the launcher: runs the user's command for each, and reports them at the end."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from reprokit.capture import files
from reprokit.core.printable import printable
from reprokit.model.run import SnapshotFacts
from reprokit.run.messages import say
from reprokit.run.process import Child
from reprokit.run.rundirectory import shown
from reprokit.run.user_commands import MAX_COMMANDS, UserCommands
from reprokit.run_files import rundir

VARIABLE = "REPROKIT_SNAPSHOT"
LONGEST = 200
MAX_SAID = 10  # reported snapshots


class SnapshotHook:
    """Runs the command of --on-capture for each snapshot, beside the training and never within it."""

    def __init__(self, command: str, run: Path, fallback: Path | None) -> None:
        self._commands = UserCommands("--on-capture", command)
        self._directories = _directories(run, fallback)
        self._seen: set[Path] = set()

    def __call__(self, child: Child | None = None) -> None:
        """Start the command for new snapshots, and reap ended ones."""
        for place in [directory / name for directory in self._directories for name in files.names(directory)]:
            if place not in self._seen and len(self._seen) < MAX_COMMANDS:
                self._seen.add(place)
                self._commands.start(place.name, {VARIABLE: str(place)})
        self._commands.reap()

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """Return when commands ran."""
        return self._commands.intervals

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Wait a limited time for running commands; return what went wrong."""
        self()
        return self._commands.finish(interrupted)


def _directories(run: Path, fallback: Path | None) -> list[Path]:
    return [run / rundir.SNAPSHOTS, *([] if fallback is None else [fallback])]


def remove_partials(run: Path, fallback: Path | None) -> Iterator[str]:
    """Remove incomplete snapshots of killed processes; yield a warning for each."""
    for place in [directory / name for directory in _directories(run, fallback) for name in files.partials(directory)]:
        if _is_being_written(place.name):
            continue
        shutil.rmtree(place, ignore_errors=True)
        yield "a process ended while it wrote a snapshot, which was removed"


def _is_being_written(partial: str) -> bool:
    """Return whether the process in the partial snapshot's name still runs."""
    pid = partial.split("-")[1]
    return pid.isdecimal() and rundir.is_running(int(pid))


def say_found(run: Path, command: tuple[str, ...], snapshots: list[SnapshotFacts]) -> None:
    """Report where the snapshots are, and how to find out what happened."""
    for facts in snapshots[:MAX_SAID]:
        description = facts.problem or f"step {facts.step}: {facts.trigger}"
        say(f"snapshot: {shown(files.place(run, facts))}: {printable(description, LONGEST)}")
    if len(snapshots) > MAX_SAID:
        say(f"and {len(snapshots) - MAX_SAID} more snapshots")
    complete = (facts for facts in snapshots if not facts.problem)
    usable = min(complete, key=lambda facts: facts.began_here is False, default=None)  # another rank knows the cause
    if usable is not None:
        place = shown(files.place(run, usable))
        say(f"to find out what began it: {shlex.join(['reprokit', 'snapshot', 'explain', place, '--', *command])}")
