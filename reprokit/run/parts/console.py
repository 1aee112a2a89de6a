"""Keeps what the command prints: the shim writes it into a directory, which is sealed at the end."""

from __future__ import annotations

from reprokit.run.part import Closing, Preparation, RunPart
from reprokit.run_files import rundir


class ConsolePart(RunPart):
    """The console of a run."""

    def prepare(self, preparation: Preparation) -> None:
        (preparation.new_run.path / rundir.CONSOLE).mkdir(mode=0o700)

    def finish(self, closing: Closing) -> None:
        if closing.is_over:
            closing.run.console = rundir.seal_console(closing.path)


PART = ConsolePart
