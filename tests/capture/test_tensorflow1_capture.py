"""TensorFlow 1.14: its steps are not captured, which is said, and the training goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reprokit.model.run import CaptureUnavailable
from reprokit.run_files.rundir import RunDirectory
from tests.capture.tensorflow_steps import Steps
from tests.interpreters import tf114_python
from tests.support import Reprokit, training_text

pytestmark = [pytest.mark.tf114, pytest.mark.slow]

SCRIPT = training_text("tensorflow1_nan.py")


def python() -> str:
    found = tf114_python()
    if found is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    return found


def test_a_run_says_that_nothing_is_captured_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    reprokit = Reprokit(tmp_path)
    done = reprokit.run("record", "-o", "RUN", "--on-nan", "capture", "--", python(), "train.py")
    assert done.returncode == 0, done.stderr
    assert "trained True" in done.stdout
    warning = "warning: steps of tensorflow 1.14.0 are not captured: captures need TensorFlow 2"
    assert done.stderr.count(warning) == 1
    run = RunDirectory(tmp_path / "RUN").run
    said = CaptureUnavailable(framework="tensorflow", version="1.14.0", reason="needs-tensorflow-2")
    assert run.captures_unavailable == [said]
    assert run.snapshots == []
    shown = reprokit.run("show", "RUN")
    assert "none of tensorflow 1.14.0: captures need TensorFlow 2" in shown.stdout


def test_a_step_is_not_executed_again(tmp_path: Path) -> None:
    steps = Steps(tmp_path, python())
    (tmp_path / "run" / "snapshots" / "step-00000000").mkdir(parents=True)
    found, done = steps.redo("reproduce", SCRIPT)
    assert "trained" not in done.stdout
    wanted = "steps of tensorflow 1.14.0 cannot be executed again: captures need TensorFlow 2"
    assert found == {"format": 1, "mode": "reproduce", "trouble": wanted, "reproduced": False}


def test_the_state_is_in_the_journal(tmp_path: Path) -> None:
    steps = Steps(tmp_path, python())
    done = steps.capture(SCRIPT)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (line,) = [line for line in map(json.loads, lines) if line["k"] == "capture_unavailable"]
    assert (line["framework"], line["version"], line["reason"]) == ("tensorflow", "1.14.0", "needs-tensorflow-2")
