"""Seals the trail, which the agents have written."""

from __future__ import annotations

from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir


class TrailPart(RunPart):
    """The digests of each step."""

    def finish(self, closing: Closing) -> None:
        if closing.is_over and (closing.path / rundir.TRAIL).exists():
            from reprokit.run_files import trails  # imported by runs that need it: slow to load

            closing.run.trails = trails.seal(closing.path / rundir.TRAIL)


PART = TrailPart
