"""What is interrupted and resumed by Keras, or by trainers on PyTorch, as their documentation says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.questions.test_resume import GENERATORS, found, of_script, resume

ROOT = Path(__file__).parents[2]
TRAINERS = Path(os.environ.get("REPROKIT_TRAINERS_PYTHON") or ROOT / ".venv-trainers" / "bin" / "python")
SEEDS = "seed generators of Keras"
ALL = ["optimizer", "settings", SEEDS, "data"]
LACKING = {
    ("position",): ["data"],
    ("optimizer",): ["optimizer"],
    ("seeds",): [SEEDS],
    ("backup",): [SEEDS],  # what BackupAndRestore itself leaves out
    ("load",): [SEEDS],  # likewise ModelCheckpoint; the model that is loaded has other names of variables
    ("optimizer", "seeds", "position"): ["optimizer", SEEDS, "data"],
}


@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param(one, marks=pytest.mark.slow if one == ("position",) else pytest.mark.extended, id="+".join(one))
        for one in LACKING
    ],
)
def test_the_parts_that_a_checkpoint_of_keras_lacks_are_named_and_proved(
    tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    finding = found(resume(tmp_path, "keras_resumed.py", *left_out, options=("--at", "15")), 1)
    assert (finding["missing"], finding["proved"]) == (LACKING[left_out], True)
    assert (finding["resumed_at"], finding["is_found"]) == (12, True)


@pytest.mark.extended
@pytest.mark.parametrize(
    "left_out", [(), ("position",), ("optimizer",), ("seeds",), ("optimizer", "seeds", "position")], ids="+".join
)
def test_the_parts_that_a_checkpoint_of_a_tensorflow_loop_lacks_are_named_and_proved(
    tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    """A loop of tf.function, saved by a CheckpointManager."""
    done = resume(tmp_path, "tensorflow_resumed.py", *left_out, options=("--at", "15"))
    finding = found(done, 1 if left_out else 0)
    assert (finding["missing"], finding["proved"]) == (LACKING.get(left_out, []), bool(left_out))
    assert (finding["resumed_at"], finding["is_found"]) == (12, True)


@pytest.mark.extended
@pytest.mark.parametrize("left_out", [("position",), ("seeds",)], ids="+".join)
def test_the_parts_that_a_checkpoint_of_an_eager_tensorflow_loop_lacks_are_named_and_proved(
    tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    finding = found(resume(tmp_path, "tensorflow_resumed_eagerly.py", *left_out, options=("--at", "15")), 1)
    assert (finding["missing"], finding["proved"]) == (LACKING[left_out], True)
    assert (finding["resumed_at"], finding["is_found"]) == (12, True)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("left_out", "missing"),
    [
        (("gradients", "optimizer", "schedule", "seeds", "position"), ALL),
        (("gradients",), []),
        (("gradients", "optimizer"), ["optimizer"]),
        (("gradients", "schedule"), ["settings"]),
        (("gradients", "seeds"), [SEEDS]),
        (("gradients", "position"), ["data"]),
        (("forward",), []),
        (("forward", "optimizer", "schedule", "seeds", "position"), ALL),
    ],
)
def test_loops_whose_functions_update_nothing_are_answered(
    tmp_path: Path, left_out: tuple[str, ...], missing: list[str]
) -> None:
    """The function computes gradients or the loss; the optimizer is applied outside of it."""
    done = resume(tmp_path, "tensorflow_resumed_eagerly.py", *left_out, options=("--at", "15"))
    finding = found(done, 1 if missing else 0)
    assert (finding["missing"], finding["proved"]) == (missing, bool(missing))
    assert (finding["resumed_at"], finding["is_found"], finding["notes"]) == (12, True, [])


@pytest.mark.extended
def test_a_tensor_that_an_eager_tensorflow_loop_keeps_is_named_and_proved(tmp_path: Path) -> None:
    finding = found(resume(tmp_path, "tensorflow_resumed_eagerly.py", "scale", options=("--at", "15")), 1)
    assert (finding["missing"], finding["proved"], finding["resumed_at"]) == (["variables"], True, 12)
    assert of_script(finding) == ["train.py: scale: 0.28242942690849304 in the whole training, 1.0 here"]


@pytest.mark.extended
@pytest.mark.parametrize("left_out", [("position",), ("seeds",)])
def test_several_steps_an_execution_are_put_in_together(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    finding = found(resume(tmp_path, "keras_resumed.py", "executions", *left_out, options=("--at", "5")), 1)
    assert (finding["missing"], finding["proved"]) == (LACKING[left_out], True)
    assert (finding["resumed_at"], finding["is_found"]) == (4, True)


@pytest.mark.extended
@pytest.mark.parametrize(
    "drawn", [("bagging",), pytest.param((), marks=pytest.mark.extended)], ids=["bagging", "no draws"]
)
def test_rounds_of_boosting_are_compared_from_where_the_trees_show_it(tmp_path: Path, drawn: tuple[str, ...]) -> None:
    """The model has no generator: what follows the one of bagging shows in no tree of the whole training.

    LightGBM writes into its model how many rounds were asked for last: 10 of 20.
    """
    finding = found(resume(tmp_path, "lightgbm_resumed.py", *drawn, options=("--at", "12")), 1)
    assert (finding["first"] is None) == (not drawn)
    assert [other["name"] for other in finding["others"]] == ["model.txt"]
    assert (finding["resumed_at"], finding["is_found"]) == ((12, False) if drawn else (10, True))
    assert (finding["missing"], finding["proved"]) == ([], False)
    assert [part["objects"] for part in finding["parts"]] == [["train.py: rounds", "train.py: start"]]
    assert any("(bagging_fraction = 0.7)" in note for note in finding["notes"]) == bool(drawn)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("forgotten", "objects"),
    [
        ("counted", ["train.py: callbacks[0].saved"]),
        pytest.param("patience", ["train.py: callbacks[1].current_rounds"], marks=pytest.mark.extended),
    ],
)
def test_what_a_callback_of_xgboost_forgets_is_named_and_proved(
    tmp_path: Path, forgotten: str, objects: list[str]
) -> None:
    """All rounds are the same; what ends the training is another."""
    finding = found(resume(tmp_path, "xgboost_resumed.py", forgotten, options=("--at", "12")), 1)
    assert finding["first"]["quantity"] == "steps"
    assert (finding["resumed_at"], finding["missing"], finding["proved"]) == (10, ["variables"], True)
    (part,) = finding["parts"]
    assert set(objects) <= set(part["objects"])
    assert len(part["objects"]) == 1 or forgotten == "patience"


@pytest.mark.extended
def test_what_the_function_of_a_callback_of_lightgbm_forgets_is_named(tmp_path: Path) -> None:
    """It is in no variable. The model says how many rounds were asked for last, so that no trial proves it."""
    finding = found(resume(tmp_path, "lightgbm_resumed.py", "closure", options=("--at", "12")), 1)
    (part,) = finding["parts"]
    assert "train.py: callbacks[1].calls: 10 in the whole training, 0 here" in part["names"]


@pytest.mark.extended
def test_a_backup_of_keras_within_an_epoch_begins_the_epoch_again(tmp_path: Path) -> None:
    """The trial that proves it ends the epoch where the whole training's ended."""
    finding = found(resume(tmp_path, "keras_resumed.py", "backup", "within", options=("--at", "11")), 1)
    assert (finding["missing"], finding["proved"], finding["resumed_at"]) == (["metrics", SEEDS, "data"], True, 8)


@pytest.mark.extended
def test_what_a_callback_of_keras_forgets_is_named_and_proved(tmp_path: Path) -> None:
    finding = found(resume(tmp_path, "keras_best_only.py"), 1)
    assert ("outputs", "best.keras") in {(other["fact"], other["name"]) for other in finding["others"]}
    assert (finding["first"], finding["missing"], finding["proved"]) == (None, ["variables"], True)
    (part,) = finding["parts"]
    assert [name.partition(":")[0] for name in part["objects"]] == ["keras"]
    assert all("ModelCheckpoint" in name or "callbacks" in name for name in part["objects"])


@pytest.mark.extended
def test_nothing_is_blamed_where_reading_the_state_makes_another_training(tmp_path: Path) -> None:
    """TensorFlow draws the seeds of later epochs' orders from where each reading draws, too: only one run reads."""
    done = resume(tmp_path, "keras_resumed_without_a_seed.py", options=("--at", "5"))
    assert done.returncode == 2, done.stdout
    assert "cannot-resume: the interrupted replay is not the recorded training" in done.stderr
    assert "give it one (tf.random.set_seed)" in done.stderr


@pytest.mark.extended
def test_a_whole_checkpoint_of_keras_is_exact(tmp_path: Path) -> None:
    finding = found(resume(tmp_path, "keras_resumed.py", options=("--at", "15")), 0)
    assert (finding["verdict"], finding["resumed_at"], finding["compared"]) == ("exact", 12, 12)
    assert (finding["parts"], finding["first"]) == ([], None)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("training", "arguments", "missing"),
    [
        ("transformers_resumed.py", (), []),
        ("transformers_resumed.py", ("noise",), [GENERATORS[0], "data"]),  # transformers' PR 46628
        ("accelerate_resumed.py", (), [GENERATORS[0], "data"]),  # as documented; accelerate's PR 4233
        ("lightning_resumed.py", (), [GENERATORS[0], "data"]),
    ],
)
def test_what_trainers_leave_out_within_an_epoch_is_named_and_proved(
    tmp_path: Path, training: str, arguments: tuple[str, ...], missing: list[str]
) -> None:
    """A loader that fetches a batch ahead has had it before the step that it is for."""
    done = resume(tmp_path, training, *arguments, options=("--at", "14"), python=str(TRAINERS))
    finding = found(done, 1 if missing else 0)
    assert (finding["missing"], finding["proved"], finding["resumed_at"]) == (missing, bool(missing), 12)


@pytest.mark.extended
def test_batches_that_are_fetched_ahead_hide_no_generator_that_differs(tmp_path: Path) -> None:
    """The resumed training fetches two batches before its first step, whose model has the same inputs."""
    done = resume(tmp_path, "accelerate_resumed.py", "seedable", options=("--at", "14"), python=str(TRAINERS))
    finding = found(done, 1)
    assert (finding["missing"], finding["proved"]) == ([GENERATORS[0]], True)
    assert (finding["first"]["step"], finding["first"]["quantity"]) == (12, "random state")
