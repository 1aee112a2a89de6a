"""A replay that was asked something proves that it is its recording, or says from which step on it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reprokit.questions.proof import DivergedSeries
from tests.questions.asking import asked
from tests.support import Reprokit

TRAINING = Path(__file__).parents[1] / "trainings/pytorch_other_step.py"


@pytest.mark.slow
def test_a_replay_proves_each_step_and_says_where_it_is_another(tmp_path: Path) -> None:
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", sys.executable, str(TRAINING)).returncode == 0
    _, same = asked(tmp_path / "run", tmp_path / "same")
    (tmp_path / "other").touch()
    _, other = asked(tmp_path / "run", tmp_path / "another")
    assert same.holds
    assert list(same.steps.values()) == [8]
    assert same.holds_until("0") is None
    assert not other.holds
    assert other.holds_until("0") == 5
    assert [(one.step, one.process) for one in other.diverged] == [(5, "0")]
    assert isinstance(other.diverged[0], DivergedSeries)
    assert other.holds_until("7") == 0  # a process of which nothing was compared
