"""The runs in a directory, in a line each; of every one only run.json is read, and sizes of files."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from reprokit import run_home, rundir
from reprokit.errors import RunError, RunNotFound
from reprokit.model.run import FAILED
from reprokit.rundir import RunDirectory
from reprokit.screen import Cells, print_rows
from reprokit.verify.compare.status import ended

FORMAT = 1
HEADINGS = ("name", "when", "command", "status", "of", "verdict", "size")
STYLES = {"identical": "green", "tolerated": "yellow", "different": "bold red"}
GAPS = 2 * (len(HEADINGS) - 1)
LEAST = 12  # columns of a command, however narrow the terminal
RECENT = 300 * 86400  # seconds for which the year goes without saying


@dataclass(frozen=True)
class ListedRun:
    """A run, or why it cannot be read."""

    path: Path
    run: RunDirectory | None
    problem: str = ""
    name: str = ""  # by which commands find it
    recording: str = ""  # the name of what it replayed, if that is here too
    verdict: str = ""  # of the last comparison with its recording

    @property
    def state(self) -> str:
        """How it ended, or that it has not."""
        if self.run is None:
            return self.problem
        if self.run.in_progress:
            return "in progress"
        return "failed to start" if self.run.run.status == FAILED else ended(self.run.run) or "did not come to its end"

    @property
    def status(self) -> str:
        """The same in at most 11 characters."""
        if self.run is None:
            return "damaged"
        run = self.run.run
        if run.status == FAILED or self.run.in_progress:
            return "no start" if run.status == FAILED else "in progress"
        return "no end" if not ended(run) else run.signal or f"exit {run.exit_code}"

    @property
    def size(self) -> int:
        """Bytes of its files, without following links."""
        return rundir.size_of(self.path)


def runs(directory: Path) -> list[ListedRun]:
    """Return the runs right below a directory, the newest first; those that cannot be read come last."""
    try:
        names = run_home.names(directory)
    except FileNotFoundError:
        raise RunNotFound(f"{directory} does not exist; 'reprokit record -- COMMAND' makes a run there") from None
    except OSError as error:
        raise RunNotFound(f"{directory}: {error.strerror}; name a directory of runs") from None
    readable = run_home.newest_first(directory)
    shorter = {found.path.name: run_home.short(found.path.name, names) for found in readable}
    ids = {found.run.run_id: shorter[found.path.name] for found in readable}
    verdicts = run_home.verdicts(directory)
    listed = []
    for found in readable:
        asked, name = found.run.replay_of, shorter[found.path.name]
        recording = "" if asked is None else ids.get(asked.run_id, "not here")
        listed.append(ListedRun(found.path, found, "", name, recording, verdicts.get(found.run.run_id, "")))
    return listed + [_damaged(directory / name) for name in names if name not in shorter]


def _damaged(path: Path) -> ListedRun:
    try:
        return ListedRun(path, RunDirectory(path), name=path.name)  # it has become readable meanwhile
    except RunError as error:
        return ListedRun(path, None, str(error), path.name)


def document(found: list[ListedRun]) -> dict[str, Any]:
    """Return the list as a JSON document."""
    return {"format": FORMAT, "runs": [_entry(one) for one in found]}


def _entry(one: ListedRun) -> dict[str, Any]:
    places = {"path": str(one.path), "name": one.name, "size": one.size}
    if one.run is None:
        return {**places, "problem": one.problem}
    run = one.run.run
    facts = {name: getattr(run, name) for name in ("run_id", "kind", "command", "status", "exit_code", "signal")}
    times = {name: getattr(run, name) for name in ("started", "ended", "duration")}
    replay_of = run.replay_of.run_id if run.replay_of is not None else None
    return {**places, "state": one.state, **facts, **times, "replay_of": replay_of, "verdict": one.verdict or None}


def print_runs(directory: Path, found: list[ListedRun]) -> None:
    """Print them, as wide as the terminal is."""
    table = [HEADINGS, *map(cells, found)] if found else []
    others = [max(map(len, column)) for number, column in enumerate(zip(*table, strict=True)) if number != 2]
    room = max(LEAST, shutil.get_terminal_size().columns - sum(others) - GAPS)
    rows = [Cells((*row[:2], _cut(row[2], room), *row[3:]), STYLES.get(row[5], "")) for row in table]
    problems = [one.problem for one in found if one.problem]
    print_rows(headline(directory, found), rows, problems)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def headline(directory: Path, found: list[ListedRun]) -> str:
    """Return how many there are."""
    return f"{directory}: {len(found)} run{'' if len(found) == 1 else 's'}"


def cells(one: ListedRun) -> tuple[str, ...]:
    """Name, when, what was run, how it ended, what it replayed, what verify said, and how large it is."""
    if one.run is None:
        return one.name, "", "", one.status, "", "", in_units(one.size)
    run = one.run.run
    of = "(plain)" if run.kind == "run" else one.recording
    return one.name, _when(run.started), _words(run.command), one.status, of, one.verdict, in_units(one.size)


def _when(started: str) -> str:
    """Return a local time of this year, or a day."""
    try:
        moment = datetime.strptime(started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).astimezone()
    except (ValueError, OverflowError):
        return started
    return moment.strftime("%m-%d %H:%M" if abs(time.time() - moment.timestamp()) < RECENT else "%Y-%m-%d")


def _words(command: Sequence[str]) -> str:
    """Return a command line, without the place of its program."""
    program = [os.path.basename(word) if word.startswith("/") else word for word in command[:1]]
    return shlex.join([*program, *command[1:]])


def in_units(size: float) -> str:
    """Return a number of bytes in at most five characters."""
    for unit in ("", "K", "M", "G"):
        if size < 1000:
            return f"{size:.0f}{unit}" if not unit or size >= 10 else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.0f}T"
