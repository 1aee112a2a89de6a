"""Seals the ledger of samples, which the agents have written."""

from __future__ import annotations

from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir


class SamplesPart(RunPart):
    """The samples that each step saw."""

    def finish(self, closing: Closing) -> None:
        if closing.is_over and (closing.path / rundir.SAMPLES).exists():
            from reprokit.run_files import ledgers  # imported by runs that need it: slow to load

            closing.run.samples = ledgers.seal(closing.path / rundir.SAMPLES)


PART = SamplesPart
