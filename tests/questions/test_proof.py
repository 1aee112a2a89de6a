"""A replay that was asked something proves that it is its recording, or says from which step on it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reprokit.questions.proof import DivergedSeries, prove
from reprokit.run_files.rundir import RunDirectory
from tests.questions.asking import asked
from tests.support import Reprokit

TRAINING = Path(__file__).parents[1] / "trainings/pytorch_other_step.py"


@pytest.mark.slow
def test_a_replay_proves_each_step_and_says_where_it_is_another(tmp_path: Path) -> None:
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", sys.executable, str(TRAINING)).returncode == 0
    _, same = asked(tmp_path / "run", tmp_path / "same", to_end=True)
    (tmp_path / "other").touch()
    _, other = asked(tmp_path / "run", tmp_path / "another", to_end=True)
    assert same.holds
    assert list(same.steps.values()) == [8]
    assert same.holds_until("0") is None
    assert not other.holds
    assert other.holds_until("0") == 5
    assert [(one.step, one.process) for one in other.diverged] == [(5, "0")]
    assert isinstance(other.diverged[0], DivergedSeries)
    assert other.holds_until("7") == 0  # a process of which nothing was compared


SEEDED = str(Path(__file__).parents[1] / "trainings" / "pytorch_seeded_random.py")


@pytest.mark.slow
def test_a_generator_that_no_step_draws_from_disproves_nothing(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    for name, arguments in {"left": "1", "right": "2", "drawn left": "1 draw", "drawn right": "2 draw"}.items():
        command = (sys.executable, SEEDED, *arguments.split())
        assert reprokit.run("record", "-o", name, "--", *command).returncode == 0
    runs = {name: RunDirectory(tmp_path / name) for name in ("left", "right", "drawn left", "drawn right")}
    assert prove(runs["left"], runs["right"]).holds
    assert "next: reprokit locate" not in reprokit.run("verify", "left", "right").stderr
    assert not prove(runs["drawn left"], runs["drawn right"]).holds
    assert "next: reprokit locate" in reprokit.run("verify", "drawn left", "drawn right").stderr
