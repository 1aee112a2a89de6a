"""PyTorch: weights that an update ruins, whose gradients and loss were finite, and whose turn it is to update."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.capture import load
from tests.capture.tensorflow_steps import Steps
from tests.capture.test_torch_redo import is_the_same
from tests.support import training_text

pytestmark = pytest.mark.torch


def captured(directory: Path, case: str, width: int = 16) -> tuple[Steps, str]:
    script = training_text("pytorch_ruined.py", case).replace("WIDTH = 16", f"WIDTH = {width}")
    steps = Steps(directory)
    done = steps.capture(script)
    assert done.returncode == 123, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return steps, script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("half", 0),
        pytest.param("closure", 5, marks=pytest.mark.slow),
        pytest.param("large_step", 5, marks=pytest.mark.extended),
        pytest.param("compiled", 5, marks=pytest.mark.extended),
    ],
)
def test_the_state_is_that_before_the_update(tmp_path: Path, case: str, step: int) -> None:
    steps, script = captured(tmp_path, case)
    header = steps.header()
    assert (header["step"], header["trigger"]["kind"]) == (step, "parameter")
    snapshot = load(steps.snapshots[0])
    assert all(numpy.isfinite(snapshot.tensors[name]).all() for name in snapshot.tensors if name.startswith("model."))
    assert "is not finite after the update" in snapshot.trigger
    result, _ = steps.redo("explain", script)
    assert is_the_same(result), result
    assert result["trigger"]["kind"] == "parameter"
    assert result["operation"]


@pytest.mark.extended
def test_of_a_large_model_an_earlier_state_is_kept(tmp_path: Path) -> None:
    steps, script = captured(tmp_path, "large_step", width=20_000)
    header = steps.header()
    assert (header["trigger"]["kind"], header["batches"]) == ("parameter", [])
    assert header["step"] + header["trigger"]["updates"] == 6
    assert "loss" in [trigger["kind"] for trigger in header["also"]]
    snapshot = load(steps.snapshots[0])
    assert all(numpy.isfinite(snapshot.tensors[name]).all() for name in snapshot.tensors if name.startswith("model."))
    result, _ = steps.redo("reproduce", script)
    assert "some updates before" in result["trouble"]


@pytest.mark.extended
def test_weights_that_were_ruined_before_the_step_are_told_as_such(tmp_path: Path) -> None:
    steps, script = captured(tmp_path, "not_held")
    header = steps.header()
    assert (header["step"], header["trigger"]["kind"], header["trigger"]["was_before"]) == (6, "parameter", True)
    assert "was not finite before the step" in load(steps.snapshots[0]).trigger
    result, _ = steps.redo("explain", script)
    assert is_the_same(result), result
    assert re.match(r"parameter \S+ was not finite before any operator worked on it", result["words"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "when"), [("adversaries", 0), pytest.param("late_adversaries", 3, marks=pytest.mark.extended)]
)
def test_a_model_whose_turn_it_is_not_is_not_compared(tmp_path: Path, case: str, when: int) -> None:
    """The critic has gradients of its own step, and gets others of the generator's loss, which nobody applies."""
    steps, script = captured(tmp_path, case)
    header: dict[str, Any] = steps.header()
    names = [optimizer["name"] for optimizer in header["optimizers"]]
    assert header["trigger"]["optimizers"] == names[1:]
    assert header["step"] == when
    result, _ = steps.redo("reproduce", script)
    assert is_the_same(result), result
    assert result["gradients"]["equal"] == 4
