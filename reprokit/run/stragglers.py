"""Finds processes of a run that outlive its command, if no supervisor reports them."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from reprokit.model.run import OutlivingProgram
from reprokit.run.environment import RUN, RUN_PATH_SIZE
from reprokit.run.supervisor import PATIENCE
from reprokit.run_files.rundir import padded

PAUSE = 0.01  # seconds
MAX_PROGRAMS = 100  # that are named
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def has_stragglers(run: Path, patience: float = PATIENCE / 1000) -> bool:
    """Return whether a process of this run still runs after these seconds."""
    deadline = time.monotonic() + patience
    while has_process := any(True for _ in processes(run)):
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE)
    return has_process


def end(run: Path) -> None:
    """Terminate the remaining processes of an abandoned run, and kill those that do not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes(run):
            with suppress(OSError):
                os.kill(process, number)
        deadline = time.monotonic() + GRACE
        while any(True for _ in processes(run)) and time.monotonic() < deadline:
            time.sleep(PAUSE)


def outliving(run: Path) -> list[OutlivingProgram]:
    """Return the programs of processes that still run; one that was started with other variables has no name."""
    counts = Counter(map(_program_name, processes(run))) or Counter([""])
    return [OutlivingProgram(name=name, processes=count) for name, count in sorted(counts.items())[:MAX_PROGRAMS]]


def _program_name(process: int) -> str:
    with suppress(OSError):
        return Path("/proc", str(process), "comm").read_text(errors="replace").strip()
    return ""


def processes(run: Path) -> Iterator[int]:
    """Return the ids of processes with this run in their environment."""
    assignment = os.fsencode(f"{RUN}={padded(run, RUN_PATH_SIZE)}")
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and _is_of_run(name, assignment))


def _is_of_run(process: str, assignment: bytes) -> bool:
    """Return whether a process started with this variable; False for another user's or an ended process."""
    with suppress(OSError):
        return assignment in Path("/proc", process, "environ").read_bytes().split(b"\0")
    return False
