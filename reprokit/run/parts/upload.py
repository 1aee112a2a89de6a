"""Runs the process of record --push, which uploads a run to an object store beside the training."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

from reprokit.core.messages import warn
from reprokit.model.plan import Plan
from reprokit.run.part import Closing, Launch, RunPart, Watch
from reprokit.run.process import Child
from reprokit.run.user_commands import spawn

# Modules are imported from this process's sys.path, not from the user's current directory.
COMMAND = (
    "import os, sys; os.nice(10); sys.path[:] = sys.argv.pop(1).split(':'); from reprokit.cli.main import main; main()"
)
NAP = 0.05


class Upload(RunPart):
    """Starts 'reprokit push --follow', which follows the run until its end, and waits for it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._arguments: list[str] = []
        self._pid = 0
        self._failure = ""

    def started(self, launch: Launch) -> None:
        self._arguments = ["push", "--quiet", "--follow", str(launch.path.absolute()), self._plan.push]

    def watches(self) -> Iterable[Watch]:
        return (self._begin,)

    def _begin(self, _child: Child | None = None) -> None:
        """Start the process at the first call."""
        if self._pid or self._failure:
            return
        path = ":".join(filter(os.path.isabs, sys.path))
        words = [sys.executable, "-I", "-c", COMMAND, path, *self._arguments]
        try:
            self._pid = spawn(words, {}, setpgroup=0)  # Ctrl-C ends the training, not the upload
        except OSError as error:
            self._failure = error.strerror or str(error)
            warn(f"--push: {self._failure}; nothing is uploaded", "not-uploaded")

    def leave(self, closing: Closing) -> None:
        """Wait until everything is uploaded; an interruption leaves the rest to 'reprokit push'."""
        self._begin()
        ended_pid = status = 0
        while self._pid and not ended_pid:
            if closing.interrupted():
                os.kill(self._pid, signal.SIGTERM)
            ended_pid, status = os.waitpid(self._pid, os.WNOHANG)
            if not ended_pid:
                time.sleep(NAP)
        if status:
            advice = "'reprokit push --follow' writes what is missing"
            warn(f"--push: the run is not whole in the store; {advice}", "not-uploaded")


PART = Upload
