"""PyTorch: batches of the script's own classes, lists and functions are told by sample, by line, or not at all."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.capture.tensorflow_steps import Steps, captured
from tests.capture.test_torch_redo import is_the_same
from tests.support import Reprokit, rest_slow, training_text

pytestmark = pytest.mark.torch


def script(case: str) -> str:
    return training_text("captured_batches.py", case)


def redone(steps: Steps, mode: str, case: str) -> dict[str, Any]:
    result, _ = steps.redo(mode, script(case))
    assert is_the_same(result), result
    return result


@pytest.mark.slow
@pytest.mark.parametrize("case", rest_slow(["two_models"], extended=["accumulated", "pictures", "objects"]))
def test_the_sample_is_told_by_explain_and_minimize(tmp_path: Path, case: str) -> None:
    steps = captured(tmp_path, script(case))
    explained, smallest = (redone(steps, mode, case) for mode in ("explain", "minimize"))
    assert explained["indices"] == smallest["indices"] == [50]
    assert explained["samples"] == smallest["samples"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["graphs", pytest.param("joined_graphs", marks=pytest.mark.extended)])
def test_the_sample_of_a_batch_that_cannot_be_cut_is_told(tmp_path: Path, case: str) -> None:
    steps = captured(tmp_path, script(case))
    assert redone(steps, "explain", case)["indices"] == [50]
    result = redone(steps, "minimize", case)
    assert (result["of"], result["indices"]) == (1, None)
    assert "belong to which of its samples is not known" in result["problems"][0]


@pytest.mark.parametrize(
    ("case", "line"),
    [
        pytest.param("returned", "# here", marks=pytest.mark.extended),
        pytest.param("episodes", "return (rewards - rewards.mean()) / rewards.std()", marks=pytest.mark.slow),
    ],
)
def test_a_line_of_a_function_that_has_returned_is_named(tmp_path: Path, case: str, line: str) -> None:
    steps = captured(tmp_path, script(case))
    (place,) = redone(steps, "explain", case)["where"]
    assert linecache.getline(str(tmp_path / "train.py"), place[1]).strip().endswith(line)


@pytest.mark.extended
def test_an_update_that_ruins_weights_blames_no_sample(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("half_precision"))
    result = redone(steps, "explain", "half_precision")
    assert result["samples"] is None
    assert "divisors are 0" in result["words"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "mode", "words"),
    [
        pytest.param(
            *("partly_opaque", "minimize", "without what was not kept of its batch"), marks=pytest.mark.extended
        ),
        ("no_module", "reproduce", "called no module with gradients enabled"),
    ],
)
def test_a_step_that_cannot_be_executed_again_is_status_2(reprokit: Reprokit, case: str, mode: str, words: str) -> None:
    reprokit.script("train.py", script(case))
    command = ("--", sys.executable, "train.py")
    assert reprokit.run("run", "--on-nan", "capture", *command).returncode == 123
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    done = reprokit.run("snapshot", mode, snapshot, *command)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr


@pytest.mark.extended
def test_of_two_models_without_a_loader_the_captured_one_is_compared(tmp_path: Path) -> None:
    """In each turn the other's loss comes first, computed with what is put in, and is as bad."""
    steps = captured(tmp_path, script("adversaries"))
    assert steps.header()["step"] == 3
    for mode in ("reproduce", "explain", "minimize"):
        result = redone(steps, mode, "adversaries")
        assert (result["gradients"]["equal"], result["samples"] if mode == "minimize" else [2]) == (4, [2])


@pytest.mark.extended
def test_another_loss_than_captured_is_no_success(reprokit: Reprokit) -> None:
    reprokit.script("train.py", script("counted"))
    command = ("--", sys.executable, "train.py")
    assert reprokit.run("run", "--on-nan", "capture", *command).returncode == 123
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    done = reprokit.run("snapshot", "reproduce", snapshot, *command)
    assert done.returncode == 1, done.stdout
    assert "reproduced with another loss than captured: gradient of" in done.stdout
    assert "4 of 4 are bitwise as captured" in done.stdout


@pytest.mark.extended
def test_a_script_without_a_loader_is_started_again_but_once(reprokit: Reprokit) -> None:
    log = reprokit.directory / "starts"
    reprokit.script("train.py", f"open({str(log)!r}, 'a').write('x')\n" + script("episodes"))
    command = ("--", sys.executable, "train.py")
    assert reprokit.run("run", "--on-nan", "capture", *command).returncode == 123
    log.unlink()
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    done = reprokit.run("snapshot", "minimize", snapshot, *command)
    assert done.returncode == 0, done.stderr
    assert log.read_text() == "xx"
