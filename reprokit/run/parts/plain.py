"""Runs a command without the shim: with the agent, which may record metrics, or with nothing added.

No entropy is recorded. The files that the command wrote are those that changed meanwhile.
"""

from __future__ import annotations

import os

from reprokit.core.messages import say
from reprokit.model.states import not_loaded, off
from reprokit.run.part import Closing, Launch, Preparation, RunPart
from reprokit.run.rundirectory import remove, shown
from reprokit.run_files import rundir

NOTHING = off("nothing was recorded", "not-recorded")


class PlainRun(RunPart):
    """A run that records no entropy; its directory is kept only if it is of use."""

    def prepare(self, preparation: Preparation) -> None:
        run = preparation.run
        run.key, run.supervisor = "", NOTHING
        run.shim = not_loaded("nothing was recorded", "not-recorded")
        run.trail = self._plan.trail if self._plan.observed else NOTHING

    def arm(self, launch: Launch) -> None:
        launch.randomized = True

    def ended(self, closing: Closing) -> None:
        if self._plan.observed:
            closing.is_over = True

    def leave(self, closing: Closing) -> None:
        plan, path = self._plan, closing.path
        if plan.capture is not None and plan.capture.redo is not None:
            return  # its caller reads the result
        if plan.output is not None or closing.run.snapshots or os.path.isdir(path / rundir.TENSORS):
            say(f"run: {shown(path)}")
        else:
            remove(path)


PART = PlainRun
