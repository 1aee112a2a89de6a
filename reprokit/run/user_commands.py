"""Runs a user's command for each snapshot or rule alarm, beside the training and never within it."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from reprokit.core.errors import reason
from reprokit.run import environment
from reprokit.run.process import FORWARDED

COMMAND_FAILED = "command-failed"  # code of a warning
MAX_COMMANDS = 100  # started in one run
COMMAND_FAILED = "command-failed"  # code of a warning
PATIENCE = 30.0  # seconds that the end of a run waits for them
NAP = 0.05


def spawn(words: list[str], new_variables: Mapping[str, str], **options: Any) -> int:
    """Start a program beside the training: without reprokit's variables, without input, with its output on stderr."""
    nothing, output = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)
    return os.posix_spawnp(
        words[0],
        words,
        {**environment.without_own(environment.inherited()), **new_variables},
        file_actions=[nothing, output],
        setsigmask=[],  # the launcher blocks signals that it receives by sigwait
        setsigdef=[*FORWARDED, signal.SIGPIPE, signal.SIGXFSZ],
        **options,
    )


class UserCommands:
    """The processes of one user command, and their problems."""

    def __init__(self, option: str, command: str) -> None:
        self._option, self._words = option, shlex.split(command)
        self._running: dict[int, str] = {}
        self._began: dict[int, int] = {}  # nanoseconds since 1970
        self._ended: list[tuple[int, int]] = []
        self._warnings: list[str] = []

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """Return when commands ran, in nanoseconds since 1970: what changes then may be theirs."""
        return [*self._ended, *((self._began[pid], time.time_ns()) for pid in self._running)]

    def start(self, name: str, new_variables: Mapping[str, str]) -> None:
        """Start the command for the snapshot or rule of this name, with these additional variables."""
        began = time.time_ns()
        try:
            pid = spawn(self._words, new_variables)
        except (OSError, ValueError) as error:
            self._warnings.append(f"{self._option}: {self._words[0]}: {reason(error)}; it was not run for {name}")
        else:
            self._running[pid] = name
            self._began[pid] = began

    def reap(self) -> None:
        """Collect the exit status of ended commands."""
        for pid, name in list(self._running.items()):
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            if ended_pid:
                del self._running[pid]
                self._ended.append((self._began.pop(pid), time.time_ns()))
                code = os.waitstatus_to_exitcode(status)
                if code:
                    how = f"with status {code}" if code > 0 else f"by signal {-code}"
                    self._warnings.append(f"{self._option}: {self._words[0]} ended {how} for {name}")

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Wait a limited time for running commands; return what went wrong."""
        deadline = time.monotonic() + PATIENCE
        self.reap()
        while self._running and time.monotonic() < deadline and not interrupted():
            time.sleep(NAP)
            self.reap()
        still_running = [f"{self._option}: {self._words[0]} still runs for {name}" for name in self._running.values()]
        return [*self._warnings, *still_running]
