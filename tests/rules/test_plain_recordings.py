"""What `reprokit rules` says of recordings that saved no tensors: by losses and trail, then by a replay."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from reprokit.model.plan import RECORD, REPLAY
from tests import number_files
from tests.saved_tensors.writer import run_directory
from tests.support import Reprokit

TRAININGS = Path(__file__).parents[1] / "trainings"


def recording(path: Path, *losses: float, kind: str = RECORD) -> Path:
    """A run that recorded losses alone."""
    run = run_directory(path, kind=kind)
    (run / "numbers").mkdir()
    (run / "numbers" / "0123456789abcdef-0.numbers").write_bytes(number_files.losses(losses))
    return run


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([1.0, 2.0, float("nan"), 3.0], "ExplodingTensor at step 2: loss: it holds NaN\n"),
        ([1.0 + step for step in range(20)], "LossNotDecreasing at step 19: loss: it rose in 20 saved steps"),
        ([1 / (step + 1) for step in range(30)], ""),
    ],
    ids=["nan", "rising", "falling"],
)
def test_losses_are_judged_without_tensors(reprokit: Reprokit, tmp_path: Path, losses: list[float], words: str) -> None:
    recording(tmp_path / "run", *losses)
    done = reprokit.run("rules", "run", "--no-replay")
    assert (done.returncode, words in done.stdout) == (int(bool(words)), True), done.stdout + done.stderr
    assert ("    usually: " in done.stdout) == bool(words)


def test_a_long_recording_is_judged_with_its_one_odd_loss(reprokit: Reprokit, tmp_path: Path) -> None:
    losses = [1 / (step + 1) for step in range(50_000)]
    losses[31_415] = float("inf")
    recording(tmp_path / "run", *losses)
    done = reprokit.run("rules", "run", "--no-replay", "--rule", "ExplodingTensor")
    assert "ExplodingTensor at step 31415: loss: it holds infinity" in done.stdout, done.stdout


def test_a_run_that_cannot_be_replayed_is_judged_by_its_losses(reprokit: Reprokit, tmp_path: Path) -> None:
    recording(tmp_path / "run", 1.0, float("nan"), kind=REPLAY)
    done = reprokit.run("rules", "run")
    assert (done.returncode, "1 alarm of" in done.stdout) == (1, True)
    assert "by its losses and its trail: ExplodingTensor at step 1: loss: it holds NaN" in done.stderr
    assert "judged by losses and trail alone, as no replay gave tensors" in done.stderr
    assert "replaying" not in done.stderr  # it is not announced before it is refused


def test_a_run_of_nothing_is_one_clear_line(reprokit: Reprokit, tmp_path: Path) -> None:
    run_directory(tmp_path / "run")
    done = reprokit.run("rules", "run", "--no-replay")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "reprokit: nothing-saved: " in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--steps", "5-3"], "end before they begin"), (["--steps", "5", "--no-replay"], "leave out --follow")],
)
def test_steps_that_cannot_be_meant_are_one_clear_line(
    reprokit: Reprokit, tmp_path: Path, words: list[str], text: str
) -> None:
    recording(tmp_path / "run", 1.0)
    done = reprokit.run("rules", "run", *words)
    assert (done.returncode, text in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


@pytest.mark.slow
def test_a_replay_gives_the_tensors_that_rules_read_and_they_stay(reprokit: Reprokit) -> None:
    script = reprokit.directory / "train.py"
    script.write_bytes((TRAININGS / "sick" / "left_in_eval_mode.py").read_bytes())
    assert reprokit.run("record", "-q", "-o", "run", "--", sys.executable, str(script)).returncode == 0
    done = reprokit.run("rules", "run")
    assert done.returncode == 1, done.stderr
    [alarm, usual] = done.stdout.splitlines()[:2]
    assert alarm.startswith("TrainedInEvalMode at step 22: Sequential_modes of 2 (Dropout) (")
    assert (usual, script.name in alarm) == ("    usually: a missing model.train() after an evaluation", True)
    assert "the trail does not see" in done.stdout
    assert "run lacks tensors: replaying it for those that rules read (the recording took " in done.stderr
    again = reprokit.run("rules", "run", "--json")
    assert "replaying" not in again.stderr
    [group] = json.loads(again.stdout)["alarms"]
    assert (group["rule"], group["step"], group["may_follow"]) == ("TrainedInEvalMode", 22, [])
    kept = json.loads((reprokit.directory / "run" / "findings.json").read_text())["findings"]
    assert [finding["rule"] for finding in kept] == ["TrainedInEvalMode"]
    assert not [*reprokit.directory.glob(".rules-*")]


@pytest.mark.slow
def test_steps_are_judged_from_a_keyframe_and_not_where_the_replay_is_another_run(reprokit: Reprokit) -> None:
    script = reprokit.directory / "train.py"
    script.write_bytes((TRAININGS / "keyframed_loop.py").read_bytes())
    options = ("-q", "-o", "run", "--keyframes", "15steps")
    done = reprokit.run("record", *options, "--", sys.executable, str(script), "40")
    assert done.returncode == 0, done.stderr
    done = reprokit.run("rules", "run", "--steps", "35-38", "--rule", "AllZero")
    assert (done.returncode, "from the keyframe of step 30" in done.stderr) == (0, True), done.stdout + done.stderr
    index = next((reprokit.directory / "run" / "tensors").glob("*.jsonl"))

    def steps() -> set[int]:
        return {line["step"] for line in map(json.loads, index.read_text().splitlines()) if "step" in line}

    assert steps() == {35, 36, 37, 38}
    done = reprokit.run("rules", "run", "--steps", "31", "--rule", "AllZero")
    assert (done.returncode, steps()) == (0, {31, 35, 36, 37, 38}), done.stdout + done.stderr
    (reprokit.directory / "run" / "tensors").rename(reprokit.directory / "aside")
    script.write_text(script.read_text().replace("1e-3)", "2e-3)"))
    done = reprokit.run("rules", "run", "--from-start", "--rule", "AllZero")
    assert "the replay is not that run from step 0 on" in done.stdout, done.stdout + done.stderr
