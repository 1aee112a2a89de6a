"""Collects the lines that agents could not write to the run's file themselves; seals it and their numbers."""

from __future__ import annotations

from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir, unflushed


class MetricsPart(RunPart):
    """The lines and numbers of the agents: metrics, weights, seeds, orders."""

    def finish(self, closing: Closing) -> None:
        if closing.is_over:
            path = closing.path / rundir.METRICS
            unflushed.gather(closing.path, path)
            closing.run.metrics = rundir.seal_file(path)
            if (closing.path / rundir.NUMBERS).exists():
                from reprokit.run_files import numbers  # imported by runs that need it: slow to load

                closing.run.numbers = numbers.seal(closing.path / rundir.NUMBERS)


PART = MetricsPart
