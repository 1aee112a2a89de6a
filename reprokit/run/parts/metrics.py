"""Collects the lines that agents could not write to the run's file themselves, and seals it."""

from __future__ import annotations

from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir, unflushed


class MetricsPart(RunPart):
    """The lines of the agents: metrics, weights, seeds, orders."""

    def finish(self, closing: Closing) -> None:
        if closing.is_over:
            path = closing.path / rundir.METRICS
            unflushed.gather(closing.path, path)
            closing.run.metrics = rundir.seal_file(path)


PART = MetricsPart
