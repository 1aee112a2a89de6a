"""Finds the files into which programs print: a pipeline's copy of what the command prints, as by `| tee log`, and logs
of other programs, as of srun or a monitor.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

MAX_PROGRAMS = 100  # of a pipeline
FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)

Identity = tuple[int, int]  # device and inode


def identities() -> set[Identity]:
    """Return the files behind the standard streams of all processes, and those that readers of our pipes write to."""
    found: set[Identity] = set()
    pipes: set[Identity] = set()
    for descriptor in range(3):
        with suppress(OSError):
            status = os.fstat(descriptor)
            (pipes if stat.S_ISFIFO(status.st_mode) and descriptor else found).add((status.st_dev, status.st_ino))
    return found | set(_printed_into()) | (_written_by_readers(pipes) if pipes else set())


def _printed_into() -> Iterator[Identity]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for descriptor in (1, 2):
            with suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{descriptor}")
                if stat.S_ISREG(status.st_mode):
                    yield status.st_dev, status.st_ino


def _written_by_readers(pipes: set[Identity]) -> set[Identity]:
    """Return the files that programs write which read one of these pipes, or a pipe that one of them writes."""
    programs = {pid: list(_open_files(pid)) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()}
    written: set[Identity] = set()
    waiting, known = list(pipes), set(pipes)
    while waiting and len(known) < MAX_PROGRAMS:
        pipe = waiting.pop()
        for files in programs.values():
            if (pipe, True, False) not in files:
                continue
            own = {identity for identity, is_pipe, is_written in files if is_written and not is_pipe}
            further = {identity for identity, is_pipe, is_written in files if is_written and is_pipe} - known
            written |= own
            known |= further
            waiting += further
    return written


def _open_files(pid: str) -> Iterator[tuple[Identity, bool, bool]]:
    """Yield the open files and pipes of a process: identity, whether it is a pipe, and whether it may be written."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{number}")
                is_pipe = stat.S_ISFIFO(status.st_mode)
                if not (is_pipe or stat.S_ISREG(status.st_mode)):
                    continue
                with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                    flags = FLAGS.search(file.read())
                yield (
                    (status.st_dev, status.st_ino),
                    is_pipe,
                    flags is not None and bool(int(flags[1], 8) & os.O_ACCMODE),
                )
