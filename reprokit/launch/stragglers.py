"""Processes of a run that go on after its command, where no supervisor tells of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from reprokit.launch.environment import RUN, RUN_PATH_SIZE
from reprokit.launch.supervisor import PATIENCE
from reprokit.rundir import padded

PAUSE = 0.01  # seconds
GRACE = 5.0  # seconds to end after SIGTERM


def has_stragglers(run: Path, patience: float = PATIENCE / 1000) -> bool:
    """Return whether some process has this run in its environment, once they were given these seconds to end."""
    deadline = time.monotonic() + patience
    while is_one := any(True for _ in processes(run)):
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE)
    return is_one


def end(run: Path) -> None:
    """Terminate what goes on of a run that nobody wants any more, and kill what that does not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes(run):
            with suppress(OSError):
                os.kill(process, number)
        deadline = time.monotonic() + GRACE
        while any(True for _ in processes(run)) and time.monotonic() < deadline:
            time.sleep(PAUSE)


def processes(run: Path) -> Iterator[int]:
    """Return those that have this run in their environment."""
    wanted = os.fsencode(f"{RUN}={padded(run, RUN_PATH_SIZE)}")
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and _is_of_run(name, wanted))


def _is_of_run(process: str, wanted: bytes) -> bool:
    """Return whether a process, unless it is another user's or has just ended, began with this variable."""
    with suppress(OSError):
        return wanted in Path("/proc", process, "environ").read_bytes().split(b"\0")
    return False
