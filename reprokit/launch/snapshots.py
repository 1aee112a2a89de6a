"""Snapshots of a run, as its launcher sees them: what appeared, and the user's command for each."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from reprokit import rundir
from reprokit.capture import files
from reprokit.launch import environment
from reprokit.launch.messages import say
from reprokit.launch.process import FORWARDED, Child
from reprokit.launch.rundirectory import shown
from reprokit.model.run import SnapshotFacts
from reprokit.printable import printable

VARIABLE = "REPROKIT_SNAPSHOT"
MAX_HOOKS = 100  # commands started in one run
PATIENCE = 30.0  # seconds that the end of a run waits for them
NAP = 0.05
LONGEST = 200
MAX_SAID = 10  # lines about snapshots


class Hook:
    """Runs the command of --on-capture for each snapshot, beside the training and never in it."""

    def __init__(self, command: str, run: Path, fallback: Path | None) -> None:
        self._words = shlex.split(command)
        self._directories = _directories(run, fallback)
        self._seen: set[Path] = set()
        self._running: dict[int, str] = {}
        self._warnings: list[str] = []

    def __call__(self, child: Child | None = None) -> None:
        """Start the command for what is new, and see what has ended."""
        for place in [directory / name for directory in self._directories for name in files.names(directory)]:
            if place not in self._seen and len(self._seen) < MAX_HOOKS:
                self._seen.add(place)
                self._start(place)
        self._reap()

    def _start(self, place: Path) -> None:
        variables = {**environment.without_own(environment.inherited()), VARIABLE: str(place)}
        nothing, output = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)
        try:
            pid = os.posix_spawnp(
                self._words[0],
                self._words,
                variables,
                file_actions=[nothing, output],
                setsigmask=[],  # the launcher blocks what it takes by sigwait
                setsigdef=[*FORWARDED, signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError as error:
            self._warnings.append(f"--on-capture: {self._words[0]}: {error.strerror}; it was not run for {place.name}")
        else:
            self._running[pid] = place.name

    def _reap(self) -> None:
        for pid, name in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._running[pid]
                code = os.waitstatus_to_exitcode(status)
                if code:
                    how = f"with status {code}" if code > 0 else f"by signal {-code}"
                    self._warnings.append(f"--on-capture: {self._words[0]} ended {how} for {name}")

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Wait a while for what is left; returns what went wrong."""
        self()
        deadline = time.monotonic() + PATIENCE
        while self._running and time.monotonic() < deadline and not interrupted():
            time.sleep(NAP)
            self._reap()
        left = [f"--on-capture: {self._words[0]} still runs for {name}" for name in self._running.values()]
        return [*self._warnings, *left]


def _directories(run: Path, fallback: Path | None) -> list[Path]:
    return [run / rundir.SNAPSHOTS, *([] if fallback is None else [fallback])]


def remove_partials(run: Path, fallback: Path | None) -> Iterator[str]:
    """Remove what a process that was killed while it captured has left; yields a warning for each."""
    for place in [directory / name for directory in _directories(run, fallback) for name in files.partials(directory)]:
        if _is_being_written(place.name):
            continue
        shutil.rmtree(place, ignore_errors=True)
        yield "a process ended while it wrote a snapshot, which was removed"


def _is_being_written(partial: str) -> bool:
    """Return whether the process that its name tells is still there."""
    pid = partial.split("-")[1]
    return pid.isdecimal() and rundir.is_running(int(pid))


def say_found(run: Path, command: tuple[str, ...], found: list[SnapshotFacts]) -> None:
    """Say where the snapshots are, and how to find out what happened."""
    for facts in found[:MAX_SAID]:
        what = facts.problem or f"step {facts.step}: {facts.trigger}"
        say(f"snapshot: {shown(files.place(run, facts))}: {printable(what, LONGEST)}")
    if len(found) > MAX_SAID:
        say(f"and {len(found) - MAX_SAID} more snapshots")
    whole = (facts for facts in found if not facts.problem)
    usable = min(whole, key=lambda facts: facts.began_here is False, default=None)  # another rank knows the cause
    if usable is not None:
        place = shown(files.place(run, usable))
        say(f"to find out what began it: {shlex.join(['reprokit', 'snapshot', 'explain', place, '--', *command])}")
