"""Tells a signal for the whole process group from one for reprokit alone.

The child is in reprokit's process group, so what `kill -- -GROUP`, `kill %1`, timeout(1) or a batch system
sends to the group reaches it without reprokit; forwarding it would make a training that saves on SIGTERM
save twice, the second time inside the first. A signal does not say whether it was sent to a group. A
process of the same group that waits for nothing else does.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from reprokit.launch.personality import end_with_parent

RECORD = struct.Struct("<id")  # a signal's number and the time at which it came
PATIENCE = 0.05  # seconds that a signal for the group may take from one process to the other
RECENT = 0.5  # seconds after which it was another one
NAME = "signal-watch"  # of the process, at most 15 characters


class GroupWatch:
    """The process that watches the group, from its start to its end."""

    def __init__(self, numbers: Collection[int]):
        """Start to watch; the numbers are blocked already."""
        self._reader, self._pid = -1, 0
        with suppress(OSError):  # no more descriptors or processes are allowed: every signal is forwarded
            self._reader, writer = os.pipe()
            with closing_descriptor(writer):
                self._pid = os.fork()
                if self._pid == 0:
                    _watch(writer, numbers)

    def has_seen(self, number: int) -> bool:
        """Whether the group was sent this signal just now."""
        if not self._pid:
            return False
        deadline = time.monotonic() + PATIENCE
        while select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(self._reader, RECORD.size)
            if len(data) < RECORD.size:
                return False
            seen, when = RECORD.unpack(data)
            if seen == number and time.monotonic() - when < RECENT:
                return True
        return False

    def close(self) -> None:
        """End the watching process."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._reader)


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _take_another_name() -> None:
    """Be no process that `pkill reprokit` finds: what finds reprokit by its name does not mean the group."""
    with suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_text(NAME)
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = map(int, after_name[45:47])  # arg_start and arg_end of proc_pid_stat(5)
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(NAME.encode().ljust(end - start, b"\0")[: end - start])


def _watch(writer: int, numbers: Collection[int]) -> NoReturn:
    """Write down each signal that comes; holds nothing of the user's open meanwhile."""
    try:
        end_with_parent()
        _take_another_name()
        for name in os.listdir("/proc/self/fd"):
            if int(name) != writer:
                with suppress(OSError):
                    os.close(int(name))
        while True:
            number = signal.sigwait(numbers)
            os.write(writer, RECORD.pack(number, time.monotonic()))
    finally:
        os._exit(1)
