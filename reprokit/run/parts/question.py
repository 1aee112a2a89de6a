"""Ends a replay that is asked something once it has answered, and says what could not be answered."""

from __future__ import annotations

from collections.abc import Iterable

from reprokit.model.plan import REPLAY
from reprokit.run.early_end import once_answered
from reprokit.run.part import Closing, Preparation, RunPart, Watch
from reprokit.run.process import ExitStatus
from reprokit.run_files import rundir

NO_STEPS = "tensors are saved by steps of PyTorch, TensorFlow, XGBoost or LightGBM, of which none was seen"


class QuestionPart(RunPart):
    """The question that a run is asked."""

    def prepare(self, preparation: Preparation) -> None:
        question = self._plan.question
        assert question is not None
        self._early_end = None
        if self._plan.kind == REPLAY or question.state is not None or question.from_keyframe is not None:
            (preparation.new_run.path / rundir.ANSWERS).mkdir(mode=0o700)
            self._early_end = once_answered(preparation.new_run.place)

    def watches(self) -> Iterable[Watch]:
        return () if self._early_end is None else (self._early_end,)

    def stop(self, ended: ExitStatus) -> ExitStatus:
        return ended if self._early_end is None else self._early_end.finish(ended)

    def finish(self, closing: Closing) -> None:
        question = self._plan.question
        has_trail = (closing.path / rundir.TRAIL).exists() or not self._plan.trail.is_on
        if question is not None and question.tensors is not None and not (closing.ended.exit_code or has_trail):
            closing.warn(NO_STEPS, "no-tensors")


PART = QuestionPart
