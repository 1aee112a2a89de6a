"""Keeps the bytes of files that were there before a recording and that it changes, so that a replay finds them."""

from __future__ import annotations

from reprokit.run import shim_plan
from reprokit.run.part import Preparation, RunPart
from reprokit.run_files import rundir


class FoundFiles(RunPart):
    """The directory into which shim and supervisor copy such files."""

    def prepare(self, preparation: Preparation) -> None:
        shim_plan.prepare_found(preparation.new_run.path / rundir.FOUND, self._plan.keep_found)


PART = FoundFiles
