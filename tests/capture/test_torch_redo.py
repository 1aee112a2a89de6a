"""PyTorch: captured steps done again in the script that made them, on all and on parts of their batches."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reprokit.capture import load
from tests.capture.tensorflow_steps import Steps, captured, line_of
from tests.support import Reprokit, training_text

pytestmark = pytest.mark.torch

OF_THE_MODULE = ("by_hand", "counted", "after_a_loader")


def script(case: str) -> str:
    return training_text("pytorch_globals.py" if case in OF_THE_MODULE else "pytorch_redone.py", case)


def is_the_same(result: dict[str, Any]) -> bool:
    """Whether loss and all gradients are bit for bit those of the snapshot."""
    gradients = result["gradients"]
    return bool(
        result["reproduced"]
        and result["loss"]["equal"]
        and gradients["equal"]
        and not gradients["different"]
        and gradients["nonfinite_equal"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "closure",
        pytest.param("two_optimizers", marks=pytest.mark.extended),
        pytest.param("parts", marks=pytest.mark.extended),
        pytest.param("without_loader", marks=pytest.mark.extended),
        pytest.param("keywords", marks=pytest.mark.extended),
        pytest.param("compiled", marks=pytest.mark.extended),
    ],
)
def test_a_step_comes_to_the_same_bits_again(tmp_path: Path, case: str) -> None:
    result, done = captured(tmp_path, script(case)).redo("reproduce", script(case))
    assert is_the_same(result), result
    assert result["trigger"]["kind"] == "gradient"
    assert done.returncode == 0


@pytest.mark.slow
def test_a_step_without_a_loader_is_explained_from_the_snapshot(tmp_path: Path) -> None:
    result, _ = captured(tmp_path, script("divided")).redo("explain", script("divided"))
    assert is_the_same(result), result
    assert (result["operation"], result["problems"]) == ("aten::div", [])
    assert (result["phase"], result["where"][0][1]) == ("forward", line_of("# origin", script("divided")))


@pytest.mark.extended
def test_a_batch_that_a_script_puts_together_is_found_in_its_variables(tmp_path: Path) -> None:
    """Some lie in a dictionary, some are computed behind the model, and some variables cannot be kept."""
    steps = captured(tmp_path, script("by_hand"))
    assert set(steps.header()["batches"][-1]["value"]) == {"dict"}
    result, _ = steps.redo("explain", script("by_hand"))
    assert is_the_same(result), result
    assert (result["trigger"]["kind"], result["operation"]) == ("loss", "aten::sqrt")
    assert result["where"][0][1] == line_of("by_hand", script("by_hand"))
    result, _ = steps.redo("minimize", script("by_hand"))
    assert is_the_same(result), result
    rows = load(steps.snapshots[0]).batches[-1]["rows"]
    assert result["samples"] == [rows.tolist().index(50)]


@pytest.mark.extended
def test_what_a_loop_counts_chooses_the_same_samples_again(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("counted"))
    assert steps.header()["loops"] == {"<module>": {"start": 48}}
    result, _ = steps.redo("explain", script("counted"))
    assert is_the_same(result), result
    assert (result["operation"], result["where"][0][1]) == ("aten::sqrt", line_of("counted", script("counted")))
    result, _ = steps.redo("minimize", script("counted"))  # a part of them it does not choose
    assert not result["reproduced"]
    assert "what loops choose by their variables cannot be made smaller" in result["problems"][0]


@pytest.mark.extended
def test_what_a_loader_gave_before_its_end_is_of_no_step_after_it(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("after_a_loader"))
    header = steps.header()
    assert [batch["from"] for batch in header["batches"]] == ["forward", "script"]
    assert header["epoch"] is None
    arguments, _ = load(steps.snapshots[0]).batches[0]
    assert not arguments[0][50 - 48].any()


@pytest.mark.extended
def test_a_step_of_two_loaders_has_samples_of_each(tmp_path: Path) -> None:
    """One of them begins anew in the middle of a step, which takes nothing from the other."""
    steps = captured(tmp_path, script("two_loaders"))
    batches = steps.header()["batches"]
    assert [(batch["from"], batch["loader"], batch["samples"]) for batch in batches] == [
        ("loader", 0, 16),
        ("loader", 1, 12),
    ]
    shown = Reprokit(tmp_path).run("snapshot", "show", str(steps.snapshots[0])).stdout
    assert "from loader 0, 16 samples" in shown
    assert "from loader 1, 12 samples" in shown
    result, _ = steps.redo("minimize", script("two_loaders"))
    assert is_the_same(result), result
    (row,) = rows_of_zeros(steps)
    assert result["samples"][0] == row
    assert (len(result["samples"]), result["of"], result["samples"][1] >= 16) == (2, 28, True)
    assert result["trials"] == len([line for line in steps.progress() if "text" in line])


@pytest.mark.extended
def test_a_batch_that_was_fetched_before_the_step_before(tmp_path: Path) -> None:
    """What is fetched next in a trial is of that trial, and so the script is started again for each."""
    steps = captured(tmp_path, script("ahead"))
    (batch,) = load(steps.snapshots[0]).batches
    assert [len(part) for part in batch] == [16, 16]
    assert rows_of_zeros(steps) == [2]
    assert (steps.header()["epoch"], steps.header()["step"]) == (0, 3)
    (tmp_path / "train.py").write_text(script("ahead"))
    training = sys.executable, "train.py"
    done = Reprokit(tmp_path).run("snapshot", "minimize", str(steps.snapshots[0]), "--json", "--", *training)
    result = json.loads(done.stdout)
    assert is_the_same(result), result
    assert (result["samples"], result["smallest"]) == ([2], True)


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param("strict_fields", marks=pytest.mark.extended), "fields"])
def test_batches_of_classes_that_answer_to_any_name_or_fail_at_it(tmp_path: Path, case: str) -> None:
    (tmp_path / "train.py").write_text(script(case))
    training = sys.executable, "train.py"
    reprokit = Reprokit(tmp_path)
    done = reprokit.run("record", "--on-nan", "capture", "--capture-when", "activations", "-o", "r", "--", *training)
    assert done.returncode == 123, done.stderr
    assert "warning" not in done.stderr
    (snapshot,) = (tmp_path / "r" / "snapshots").iterdir()
    shown = reprokit.run("snapshot", "show", str(snapshot)).stdout
    assert "batch        from loader, 16 samples, F32[16, 8], F32[16, 1], without its __main__.Opaque" in shown
    done = reprokit.run("snapshot", "minimize", str(snapshot), "--json", "--", *training)
    result = json.loads(done.stdout)
    assert is_the_same(result), result
    assert (len(result["samples"]), result["smallest"]) == (1, True)


@pytest.mark.extended
@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors_of_a_batch(reprokit: Reprokit, layout: str) -> None:
    """Of which those that are strided have no shape; the trail has them, too."""
    (reprokit.directory / "train.py").write_text(script(layout))
    training = [sys.executable, "train.py"]
    done = reprokit.run("record", "-o", "run", "--on-nan", "capture", "--", *training)
    assert done.returncode == 123, done.stderr
    assert "warning" not in done.stderr
    (snapshot,) = (reprokit.directory / "run" / "snapshots").iterdir()
    header = json.loads((snapshot / "snapshot.json").read_text())
    assert [set(node) for node in header["batches"][0]["value"]["tuple"]] == [{"tensor"}, {"ragged"}]
    done = reprokit.run("snapshot", "reproduce", str(snapshot), "--json", "--", *training)
    assert is_the_same(json.loads(done.stdout)), done.stdout


@pytest.mark.extended
def test_one_sample_of_several_batches_is_found(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("accumulating"))
    result, _ = steps.redo("minimize", script("accumulating"))
    assert is_the_same(result), result
    assert result["samples"] == rows_of_zeros(steps)
    assert (len(result["samples"]), result["of"]) == (1, 48)
    assert result["smallest"]
    assert not result["only_full"]
    trials = [line for line in steps.progress() if "text" in line]
    assert len(trials) == result["trials"]


@pytest.mark.extended
def test_parts_that_the_script_cannot_work_with_do_not_count(tmp_path: Path) -> None:
    """Nested batches, made by a worker; a single sample is an error, which the script passes by."""
    steps = captured(tmp_path, script("nested"))
    result, _ = steps.redo("minimize", script("nested"))
    assert is_the_same(result), result
    assert rows_of_zeros(steps)
    assert set(rows_of_zeros(steps)) < set(result["samples"])
    assert (len(result["samples"]), result["smallest"], result["only_full"]) == (2, True, False)


def rows_of_zeros(steps: Steps) -> list[int]:
    """The samples of all batches together that are nothing but zeros."""
    found, start = [], 0
    for value in load(steps.snapshots[0]).batches:
        inputs = value["in"]["x"] if isinstance(value, dict) else value[0]
        found += [start + row for row, values in enumerate(inputs) if not values.any()]
        start += len(inputs)
    return found


@pytest.mark.extended
def test_a_step_that_takes_the_whole_batch_says_so(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("whole"))
    result, _ = steps.redo("minimize", script("whole"))
    assert (result["reproduced"], result["only_full"], result["smallest"]) == (True, True, True)
    assert result["samples"] == list(range(16))


@pytest.mark.slow
def test_an_overflow_under_a_scaler_is_explained_and_another_model_refused(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("scaled"))
    result, _ = steps.redo("explain", script("scaled"))
    assert is_the_same(result), result
    assert result["trigger"]["kind"] == "loss"
    assert (result["phase"], result["operation"]) == ("forward", "aten::mul")
    assert "overflows float16" in result["words"]
    assert result["where"][0][1] == line_of("scaled", script("scaled"))
    other, done = steps.redo("reproduce", script("scaled").replace("UNITS = 24", "UNITS = 7"))
    assert other["trouble"] == (
        "the snapshot is of another model: 0.weight is [24, 8] in the snapshot and [7, 8] in the script's Sequential; "
        "3.weight is [1, 24] in the snapshot and [1, 7] in the script's Sequential"
    )
    assert done.returncode == 0


# Through the command line


def schema(name: str) -> Any:
    return json.loads(resources.files("reprokit").joinpath(f"schemas/{name}.schema.json").read_text())


@pytest.mark.slow
def test_a_training_is_captured_made_smaller_and_explained(reprokit: Reprokit) -> None:
    """The script ends itself after each trial that is not finite, and is started again."""
    reprokit.script("train.py", script("ending"))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", *command)
    assert done.returncode == 123, done.stderr
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    results = {}
    for mode in ("minimize", "explain"):
        done = reprokit.run("snapshot", mode, snapshot, "--json", *command)
        assert done.returncode == 0, done.stderr
        results[mode] = json.loads(done.stdout)
        jsonschema.validate(results[mode], schema("snapshot-result"))
        assert is_the_same(results[mode]), results[mode]
    assert len(results["minimize"]["samples"]) == 1
    assert results["explain"]["operation"] == "aten::log"
    assert results["explain"]["where"][0][1] == line_of("ending", script("ending"))
    assert "log of 0 is infinite; 1 of 4 inputs is 0" in results["explain"]["words"]


@pytest.mark.extended
def test_a_condition_is_known_again_however_it_was_spelled(reprokit: Reprokit) -> None:
    reprokit.script("train.py", script("large_loss"))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", "--capture-when", "loss > 50", *command)
    assert done.returncode == 123, done.stderr
    snapshot = next(reprokit.directory.glob(".reprokit/*/snapshots/step-*"))
    trigger = json.loads((snapshot / "snapshot.json").read_text())["trigger"]
    assert (trigger["condition"], trigger["what"]) == ("loss-above", "loss>50")
    done = reprokit.run("snapshot", "reproduce", str(snapshot), "--json", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert is_the_same(json.loads(done.stdout))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "bad", "count"), [("near", 5, 8), ("far", 5, 8), ("accumulated", 13, 16), ("joined", 11, 16)]
)
def test_the_sample_of_a_first_step_is_named_though_batches_were_fetched_ahead(
    tmp_path: Path, kind: str, bad: int, count: int
) -> None:
    reprokit = Reprokit(tmp_path)
    path = reprokit.script("train.py", training_text("minimized_ahead.py"))
    training = [sys.executable, str(path), kind, str(bad)]
    assert "warning" not in reprokit.run("record", "--on-nan", "capture", "-o", "run", "--", *training).stderr
    snapshot = str(tmp_path / "run" / "snapshots" / "step-00000000")
    done = reprokit.run("snapshot", "minimize", snapshot, "--json", "--", *training)
    result = json.loads(done.stdout)
    assert (result["samples"], result["indices"], result["of"]) == ([bad], [bad], count), done.stderr
