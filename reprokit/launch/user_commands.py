"""Starts a command of the user's beside the training, never in it: for each snapshot, or each alarm of a rule."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping

from reprokit.errors import reason
from reprokit.launch import environment
from reprokit.launch.process import FORWARDED

MAX_COMMANDS = 100  # started in one run
PATIENCE = 30.0  # seconds that the end of a run waits for them
NAP = 0.05


class UserCommands:
    """The processes of one command of the user's, and what went wrong with them."""

    def __init__(self, option: str, command: str) -> None:
        self._option, self._words = option, shlex.split(command)
        self._running: dict[int, str] = {}
        self._warnings: list[str] = []

    def start(self, name: str, given: Mapping[str, str]) -> None:
        """Start the command for something of this name, with these variables."""
        variables = {**environment.without_own(environment.inherited()), **given}
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
        except (OSError, ValueError) as error:
            self._warnings.append(f"{self._option}: {self._words[0]}: {reason(error)}; it was not run for {name}")
        else:
            self._running[pid] = name

    def reap(self) -> None:
        """See which have ended."""
        for pid, name in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._running[pid]
                code = os.waitstatus_to_exitcode(status)
                if code:
                    how = f"with status {code}" if code > 0 else f"by signal {-code}"
                    self._warnings.append(f"{self._option}: {self._words[0]} ended {how} for {name}")

    def finish(self, interrupted: Callable[[], bool]) -> list[str]:
        """Wait a while for what is left; returns what went wrong."""
        deadline = time.monotonic() + PATIENCE
        self.reap()
        while self._running and time.monotonic() < deadline and not interrupted():
            time.sleep(NAP)
            self.reap()
        left = [f"{self._option}: {self._words[0]} still runs for {name}" for name in self._running.values()]
        return [*self._warnings, *left]
