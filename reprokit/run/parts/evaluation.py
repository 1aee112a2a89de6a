"""Seals the predictions and labels of evaluations, which the agents have written."""

from __future__ import annotations

from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir


class EvaluationPart(RunPart):
    """The evaluations of a run."""

    def finish(self, closing: Closing) -> None:
        if closing.is_over:
            closing.run.evaluation = rundir.seal_evaluation(closing.path)


PART = EvaluationPart
