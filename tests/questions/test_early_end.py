"""A replay is ended once the steps of its question are over, and counts as ended well."""

from __future__ import annotations

import sys
from pathlib import Path

from reprokit import rundir
from reprokit.launch.early_end import ANSWERED, ENOUGH, STEPPED
from reprokit.launch.interruption import Interruption
from reprokit.model.question import Question, StepRange
from reprokit.questions.replays import ask
from reprokit.rundir import RunDirectory
from tests.support import Reprokit

TRAINING = Path(__file__).parents[1] / "trainings/pytorch_long.py"


def test_a_replay_ends_in_good_order_once_its_steps_are_over(tmp_path: Path) -> None:
    record = ("record", "-o", "run", "--", sys.executable, str(TRAINING))
    assert Reprokit(tmp_path).run(*record).returncode == 0
    recording = RunDirectory(tmp_path / "run")
    with Interruption() as interruption:
        asked = ask(recording, Question(steps=StepRange(first=2, last=3)), tmp_path / "replay", interruption)
    answers = tmp_path / "replay" / rundir.ANSWERS
    assert {path.name for path in answers.iterdir()} == {STEPPED, ANSWERED, ENOUGH}
    assert asked.executed.ended.exit_code == 0
    assert asked.proof.holds
    assert 4 <= sum(asked.proof.steps.values()) < 3000
    assert RunDirectory(tmp_path / "replay").run.exit_code == 0
