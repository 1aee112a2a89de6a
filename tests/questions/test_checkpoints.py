"""A training's own checkpoints answer questions with the bits that a replay from the first step has, or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import Reprokit

TRAINING = [sys.executable, str(Path(__file__).parents[1] / "trainings/asked_checkpoints.py"), "40"]
KERAS = Path(__file__).parents[1] / "trainings/asked_checkpoints_keras.py"
PUT_IN = ["optimizer", "PyTorch generator"]
ASKED = ("ask", "run", "weights,gradients,losses,optimizer_variables", "--steps", "33-35")


def resumed_with(*words: str) -> tuple[str, ...]:
    return "--resume-with", " ".join([*TRAINING, *words])


@pytest.mark.slow
def test_an_answer_from_a_checkpoint_is_that_from_the_first_step_or_none(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    assert reprokit.run("record", "-o", "run", "--", *TRAINING).returncode == 0
    saved = {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")}
    assert sorted(saved) == ["step-10.pt", "step-20.pt", "step-30.pt", "step-40.pt"]
    from_checkpoint = (*ASKED, "--from", "step-30.pt")

    refusals = [
        (
            resumed_with("step-30.pt", "without-generators"),
            "resumed at step 30, the training is not that run at",
        ),
        (resumed_with(), "the command read nothing of it, and began anew"),
        (("--steps", "13", *resumed_with("step-30.pt")), "step 13 comes before it, as it is that of step 30; ask from"),
        (("--resume-with", f"{sys.executable} none.py"), "took no step (exit status 2)"),
    ]
    for words, why in refusals:
        refused = reprokit.run(*from_checkpoint, *words)
        assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr
        assert f"keyframe-refused: no answer from {tmp_path / 'step-30.pt'}: " in refused.stderr
        assert why in refused.stderr
        assert "--from-start replays from the first step" in refused.stderr
        assert not (tmp_path / "run" / "tensors").exists()

    answered = reprokit.run(*from_checkpoint, *resumed_with("step-30.pt"), "--json")
    assert answered.returncode == 0, answered.stderr
    answer = json.loads(answered.stdout)
    assert (answer["checkpoint"], answer["keyframe"], answer["steps"]) == (30, None, [33, 34, 35])
    assert answer["settled"]
    assert 6 <= answer["proved_steps"] <= 10
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")} == saved
    assert not list(tmp_path.glob(".ask-*"))

    again = json.loads(reprokit.run(*ASKED, "--from-start", "--json").stdout)
    assert (again["added"], again["known"], again["differing"]) == (0, answer["added"], [])
    assert answer["added"] > 30


@pytest.mark.slow
def test_what_a_checkpoint_lacks_is_put_in_from_a_keyframe_and_said(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    assert reprokit.run("record", "-o", "run", "--keyframes", "8steps", "--", *TRAINING).returncode == 0
    words = "--from", "step-30.pt", *resumed_with("step-30.pt", "without-optimizer", "without-generators")
    answered = reprokit.run(*ASKED, *words, "--json")
    assert answered.returncode == 0, answered.stderr
    assert "reading it at step 30, from the keyframe of step 24" in answered.stderr
    answer = json.loads(answered.stdout)
    assert (answer["checkpoint"], answer["put_in"], answer["settled"]) == (30, PUT_IN, True)
    assert answer["proved_steps"] >= 6
    again = json.loads(reprokit.run(*ASKED, "--from-start", "--json").stdout)
    assert (again["added"], again["known"], again["differing"]) == (0, answer["added"], [])


@pytest.mark.extended
@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["fit", "data", "function", "eagerly"])
def test_what_a_checkpoint_of_keras_lacks_is_put_in_or_said_to_be_missing(tmp_path: Path, kind: str) -> None:
    reprokit, training = Reprokit(tmp_path), [sys.executable, str(KERAS), kind, "6"]
    assert reprokit.run("record", "-o", "run", "--keyframes", "5steps", "--", *training).returncode == 0
    asked = ("ask", "run", "weights,gradients,losses,optimizer_variables", "--steps", "28-31", "--json")
    resumed = " ".join([*training, "epoch-4.weights.h5"])
    answered = reprokit.run(*asked, "--from", "epoch-4.weights.h5", "--resume-with", resumed)
    assert answered.returncode == 0, answered.stderr
    answer = json.loads(answered.stdout)
    others = {"data": ["variables", "data"], "eagerly": ["variables"]}.get(kind, [])
    parts = ["optimizer", "seed generators of Keras", *others]
    assert (answer["checkpoint"], answer["put_in"], answer["settled"]) == (24, parts, True)
    again = json.loads(reprokit.run(*asked, "--from-start").stdout)
    assert (again["added"], again["known"], again["differing"]) == (0, answer["added"], [])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--resume-with", "python train.py"), "--resume-with resumes a checkpoint: name it with --from"),
        (("--from", "a.pt", "--from-start"), "--from-start and --from both say where the replay begins: choose one"),
        (("--from", "a.pt", "--resume-with", ""), "--resume-with: the command is empty"),
    ],
)
def test_options_that_say_no_beginning_are_refused_at_once(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    refused = Reprokit(tmp_path).run(*ASKED, *words)
    assert refused.returncode == 2
    assert why in refused.stderr
