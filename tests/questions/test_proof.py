"""A replay that was asked something proves that it is its recording, or says from which step on it is not."""

from __future__ import annotations

import sys
from pathlib import Path

from reprokit.launch.interruption import Interruption
from reprokit.model.question import Question, StepRange
from reprokit.questions.proof import PartedSeries
from reprokit.questions.replays import ask
from reprokit.rundir import RunDirectory
from tests.support import Reprokit

TRAINING = Path(__file__).parents[1] / "trainings/pytorch_other_step.py"


def test_a_replay_proves_each_step_and_says_where_it_is_another(tmp_path: Path) -> None:
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", sys.executable, str(TRAINING)).returncode == 0
    recording, question = RunDirectory(tmp_path / "run"), Question(steps=StepRange(first=2, last=3))
    with Interruption() as interruption:
        same = ask(recording, question, tmp_path / "same", interruption)
        (tmp_path / "other").touch()
        other = ask(recording, question, tmp_path / "another", interruption)
    assert same.proof.holds
    assert list(same.proof.steps.values()) == [8]
    assert same.proof.holds_until("0") is None
    assert not other.proof.holds
    assert other.proof.holds_until("0") == 5
    assert [(one.step, one.process) for one in other.proof.parted] == [(5, "0")]
    assert isinstance(other.proof.parted[0], PartedSeries)
    assert other.proof.holds_until("7") == 0  # a process of which nothing was compared
