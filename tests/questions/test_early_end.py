"""A replay is ended once the steps of its question are over, and counts as ended well."""

from __future__ import annotations

import subprocess
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


@pytest.mark.slow
def test_an_ended_replay_runs_its_exit_handlers_and_is_not_taken_apart(tmp_path: Path) -> None:
    """Python's own end takes as long as a hundred steps of 10 ms, and nobody waits for what it does."""
    record = ("record", "-o", "run", "--", sys.executable, str(TRAINING.with_name("pytorch_taken_apart.py")))
    recorded = Reprokit(tmp_path).run(*record)
    assert recorded.stdout == "at exit\ntaken apart\n", recorded.stderr
    asked = Reprokit(tmp_path).run("ask", "run", "weights", "--steps", "3", "--from-start")
    assert (asked.returncode, asked.stdout.partition("tensors: ")[0]) == (0, "at exit\n"), asked.stderr
    assert "reprokit: run: " not in asked.stderr  # it is removed by then


AT_ITS_END = """
import os, signal
from reprokit.agent.questions import pass_over_interrupts
from reprokit.run import early_end
pass_over_interrupts()
early_end.send([os.getpid()], signal.SIGINT)
print("has written its answers")
"""


def test_a_replay_that_writes_its_last_answers_is_not_killed_by_the_interrupt_that_ends_it() -> None:
    """A process that ignores interrupts would get SIGTERM."""
    done = subprocess.run([sys.executable, "-c", AT_ITS_END], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "has written its answers\n"), done.stderr
