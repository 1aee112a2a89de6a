"""Handles a run's snapshots in the launcher: runs the user's command for each, and reports them at the end."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from reprokit.capture import files
from reprokit.core.errors import RunExists
from reprokit.core.messages import say
from reprokit.core.printable import printable
from reprokit.model.run import SnapshotFacts
from reprokit.model.run_warning import NOT_WHOLE
from reprokit.run.part import Closing, Launch, Preparation, RunPart, Watch
from reprokit.run.process import Child
from reprokit.run.rundirectory import shown
from reprokit.run.user_commands import COMMAND_FAILED, MAX_COMMANDS, UserCommands
from reprokit.run_files import rundir

VARIABLE = "REPROKIT_SNAPSHOT"
LONGEST = 200
MAX_SAID = 10  # reported snapshots


class _Hook:
    """Runs the command of --on-capture for each snapshot, beside the training and never within it."""

    def __init__(self, command: str, run: Path, fallback: Path | None) -> None:
        self.commands = UserCommands("--on-capture", command)
        self._directories = _directories(run, fallback)
        self._seen: set[Path] = set()

    def __call__(self, child: Child | None = None) -> None:
        """Start the command for new snapshots, and reap ended ones."""
        for place in [directory / name for directory in self._directories for name in files.names(directory)]:
            if place not in self._seen and len(self._seen) < MAX_COMMANDS:
                self._seen.add(place)
                self.commands.start(place.name, {VARIABLE: str(place)})
        self.commands.reap()

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Wait a limited time for running commands; return what went wrong."""
        self()
        return self.commands.finish(interrupted)


class SnapshotsPart(RunPart):
    """The snapshots of a run that captures."""

    _hook: _Hook | None = None

    def prepare(self, preparation: Preparation) -> None:
        assert self._plan.capture is not None
        _refuse_others(self._plan.capture.fallback_of(preparation.new_run.place))
        (preparation.new_run.path / rundir.SNAPSHOTS).mkdir(mode=0o700)

    def started(self, launch: Launch) -> None:
        capture = self._plan.capture
        if capture is not None and capture.hook:
            self._hook = _Hook(capture.hook, launch.path, capture.fallback_of(launch.path))

    def watches(self) -> Iterable[Watch]:
        return () if self._hook is None else (self._hook,)

    def ended(self, closing: Closing) -> None:
        closing.user_commands.extend([] if self._hook is None else [self._hook.commands])

    def finish(self, closing: Closing) -> None:
        for text in () if self._hook is None else self._hook.finish(closing.interrupted):
            closing.warn(text, COMMAND_FAILED)
        for text in _remove_partials(closing.path, closing.snapshot_fallback):
            closing.warn(text, NOT_WHOLE)
        closing.run.snapshots = files.collect(closing.path, closing.snapshot_fallback)

    def leave(self, closing: Closing) -> None:
        if closing.run.snapshots and self._plan.capture is not None and self._plan.capture.redo is None:
            _say_found(closing.path, self._plan.command, closing.run.snapshots)


def _refuse_others(fallback: Path | None) -> None:
    """Raise RunExists if another run of the same name used the fallback directory: its snapshots would be mixed in."""
    if fallback is not None and os.path.lexists(fallback):
        advice = "remove it, or choose another directory with --snapshot-fallback"
        raise RunExists(f"{shown(fallback)} is there already, of another run of this name; {advice}")


def _directories(run: Path, fallback: Path | None) -> list[Path]:
    return [run / rundir.SNAPSHOTS, *([] if fallback is None else [fallback])]


def _remove_partials(run: Path, fallback: Path | None) -> Iterator[str]:
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


def _say_found(run: Path, command: tuple[str, ...], snapshots: list[SnapshotFacts]) -> None:
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


PART = SnapshotsPart
