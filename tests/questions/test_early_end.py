"""A replay is ended once the steps of its question are over, and counts as ended well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reprokit.run.early_end import ANSWERED, ENOUGH, STEPPED
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from tests.questions.asking import asked
from tests.support import Reprokit

TRAINING = Path(__file__).parents[1] / "trainings/pytorch_long.py"


@pytest.mark.slow
def test_a_replay_ends_in_good_order_once_its_steps_are_over(tmp_path: Path) -> None:
    record = ("record", "-o", "run", "--", sys.executable, str(TRAINING))
    assert Reprokit(tmp_path).run(*record).returncode == 0
    exit_code, proof = asked(tmp_path / "run", tmp_path / "replay")
    answers = tmp_path / "replay" / rundir.ANSWERS
    assert {path.name for path in answers.iterdir()} == {STEPPED, ANSWERED, ENOUGH}
    assert exit_code == 0
    assert proof.holds
    assert 4 <= sum(proof.steps.values()) < 3000
    assert RunDirectory(tmp_path / "replay").run.exit_code == 0
