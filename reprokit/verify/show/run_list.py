"""Lists the runs in a directory, one per line; only run.json and file sizes are read."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from reprokit.core.errors import RunError, RunNotFound
from reprokit.core.screen import Cells, OneLine, print_rows
from reprokit.model.run import FAILED
from reprokit.run_files import home as run_home
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.status import ended

FORMAT = 1
HEADINGS = ("name", "when", "command", "status", "of", "verdict", "size")
LEFT_OUT = ("of", "size", "when", "verdict", "command", "status")  # in this order if the line is too short
STYLES = {"identical": "green", "tolerated": "yellow", "different": "bold red"}
ONE_LINE = OneLine(cut=HEADINGS.index("command"), least=12, left_out=tuple(map(HEADINGS.index, LEFT_OUT)))
RECENT = 300 * 86400  # seconds within which a time is shown without its year


@dataclass(frozen=True)
class ListedRun:
    """A run, or why it cannot be read."""

    path: Path
    run: RunDirectory | None
    problem: str = ""
    name: str = ""  # short name that commands accept
    recording: str = ""  # name of its recording, if that is in the same directory
    verdict: str = ""  # verdict of the last comparison with its recording

    @property
    def state(self) -> str:
        """Return how the run ended, or that it is in progress."""
        if self.run is None:
            return self.problem
        if self.run.in_progress:
            return "in progress"
        return "failed to start" if self.run.run.status == FAILED else ended(self.run.run) or "did not come to its end"

    @property
    def status(self) -> str:
        """Return the state in at most 11 characters."""
        if self.run is None:
            return "damaged"
        run = self.run.run
        if run.status == FAILED or self.run.in_progress:
            return "no start" if run.status == FAILED else "in progress"
        return "no end" if not ended(run) else run.signal or f"exit {run.exit_code}"

    @property
    def size(self) -> int:
        """Return the bytes of its files, without following links."""
        return rundir.size_of(self.path)


def runs(directory: Path) -> list[ListedRun]:
    """Return the runs directly in a directory, the newest first; unreadable ones come last."""
    try:
        names = run_home.names(directory)
    except FileNotFoundError:
        raise RunNotFound(
            f"{directory} does not exist; 'reprokit record -- COMMAND' makes a run there, "
            "'reprokit ls DIRECTORY' lists others"
        ) from None
    except OSError as error:
        raise RunNotFound(f"{directory}: {error.strerror}; name a directory of runs") from None
    readable = run_home.newest_first(directory)
    short_names = {run.path.name: run_home.short(run.path.name, names) for run in readable}
    ids = {run.run.run_id: short_names[run.path.name] for run in readable}
    verdicts = run_home.verdicts(directory)
    listed = []
    for run in readable:
        replay_of, name = run.run.replay_of, short_names[run.path.name]
        recording = "" if replay_of is None else ids.get(replay_of.run_id, "not here")
        listed.append(ListedRun(run.path, run, "", name, recording, verdicts.get(run.run.run_id, "")))
    return listed + [_damaged(directory / name) for name in names if name not in short_names]


def _damaged(path: Path) -> ListedRun:
    try:
        return ListedRun(path, RunDirectory(path), name=path.name)  # it became readable meanwhile
    except RunError as error:
        return ListedRun(path, None, str(error), path.name)


def document(listed_runs: list[ListedRun]) -> dict[str, Any]:
    """Return the list as a JSON document."""
    return {"format": FORMAT, "runs": [_entry(listed) for listed in listed_runs]}


def _entry(listed: ListedRun) -> dict[str, Any]:
    places = {"path": str(listed.path), "name": listed.name, "size": listed.size}
    if listed.run is None:
        return {**places, "problem": listed.problem}
    run = listed.run.run
    facts = {name: getattr(run, name) for name in ("run_id", "kind", "command", "status", "exit_code", "signal")}
    times = {name: getattr(run, name) for name in ("started", "ended", "duration")}
    replay_of = run.replay_of.run_id if run.replay_of is not None else None
    return {
        **places,
        "state": listed.state,
        **facts,
        **times,
        "replay_of": replay_of,
        "verdict": listed.verdict or None,
    }


def print_runs(directory: Path, listed_runs: list[ListedRun]) -> None:
    """Print the runs, as wide as the terminal."""
    table = [HEADINGS, *map(cells, listed_runs)] if listed_runs else []
    rows = [Cells(row, STYLES.get(row[5], "")) for row in table]
    problems = [listed.problem for listed in listed_runs if listed.problem]
    print_rows(headline(directory, listed_runs), rows, problems, one_line=ONE_LINE)


def headline(directory: Path, listed_runs: list[ListedRun]) -> str:
    """Return the directory and the number of runs."""
    return f"{directory}: {len(listed_runs)} run{'' if len(listed_runs) == 1 else 's'}"


def cells(listed: ListedRun) -> tuple[str, ...]:
    """Return name, start, command, end, recording, verdict and size of a run."""
    if listed.run is None:
        return listed.name, "", "", listed.status, "", "", in_units(listed.size)
    run = listed.run.run
    recording = "(plain)" if run.kind == "run" else listed.recording
    return (
        listed.name,
        _when(run.started),
        _words(run.command),
        listed.status,
        recording,
        listed.verdict,
        in_units(listed.size),
    )


def _when(started: str) -> str:
    """Return a recent time in local time; of an older one the day."""
    try:
        moment = datetime.strptime(started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).astimezone()
    except (ValueError, OverflowError):
        return started
    return moment.strftime("%m-%d %H:%M" if abs(time.time() - moment.timestamp()) < RECENT else "%Y-%m-%d")


def _words(command: Sequence[str]) -> str:
    """Return the command line without its program's directory."""
    program = [os.path.basename(word) if word.startswith("/") else word for word in command[:1]]
    return shlex.join([*program, *command[1:]])


def in_units(size: float) -> str:
    """Return a number of bytes in at most five characters."""
    for unit in ("", "K", "M", "G"):
        if size < 1000:
            return f"{size:.0f}{unit}" if not unit or size >= 10 else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.0f}T"
