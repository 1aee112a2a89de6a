"""Seals the trail, which the agents have written."""

from __future__ import annotations

from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir, trails


class TrailPart(RunPart):
    """The digests of each step."""

    def finish(self, closing: Closing) -> None:
        if closing.is_over:
            closing.run.trails = trails.seal(closing.path / rundir.TRAIL)


PART = TrailPart
