"""PyTorch: what scripts make of their batches is made again by the script itself, and told in terms of the data set."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.capture.tensorflow_steps import Steps, captured, line_of
from tests.capture.test_torch_redo import is_the_same, schema
from tests.support import Reprokit, rest_slow, training_text

pytestmark = pytest.mark.torch


def script(case: str) -> str:
    return training_text("pytorch_globals.py" if case == "sliced" else "pytorch_made_batches.py", case)


def bad_sample(steps: Steps) -> int:
    """The place of sample 50 of the data set among the samples of the step."""
    indices = [index for batch in steps.header()["batches"] for index in batch.get("indices", [])]
    return indices.index(50)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("time_first", marks=pytest.mark.slow),
        *(
            pytest.param(case, marks=pytest.mark.extended)
            for case in ("dataclass_fields", "side_by_side", "end_to_end", "augmented", "noise", "accumulated")
        ),
    ],
)
def test_a_script_makes_the_same_of_its_batch_again(tmp_path: Path, case: str) -> None:
    steps = captured(tmp_path, script(case))
    result, _ = steps.redo("explain", script(case))
    assert is_the_same(result), result
    assert result["operation"] == "SqrtBackward0"
    assert result["where"][0][1] == line_of("root", script(case))
    if case in ("time_first", "augmented"):  # samples of the loader's batch, named in the data set
        result, _ = steps.redo("minimize", script(case))
        assert is_the_same(result), result
        assert (result["samples"], result["indices"]) == ([bad_sample(steps)], [50])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("part_of_a_part", marks=pytest.mark.slow),
        *(
            pytest.param(case, marks=pytest.mark.extended)
            for case in ("ordered", "weighted", "distributed", "batches_of_arrays")
        ),
    ],
)
def test_a_sample_is_named_as_its_data_set_has_it(tmp_path: Path, case: str) -> None:
    steps = captured(tmp_path, script(case))
    result, _ = steps.redo("explain", script(case))
    assert is_the_same(result), result
    if case == "ordered":  # nobody knows
        assert "as if the script's collate_fn kept the order" in result["problems"][0]
    else:
        assert (set(result["indices"]), result["problems"]) == ({50}, [])  # a sampler may draw it twice


@pytest.mark.extended
def test_a_script_of_whole_batches_is_started_again_but_once(reprokit: Reprokit) -> None:
    log = reprokit.directory / "starts"
    reprokit.script("train.py", f"open({str(log)!r}, 'a').write('x')\n" + script("whole_batches"))
    command = ("--", sys.executable, "train.py")
    assert reprokit.run("run", "--on-nan", "capture", *command).returncode == 123
    log.unlink()
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    done = reprokit.run("snapshot", "minimize", snapshot, "--json", *command)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert is_the_same(result), result
    assert result["indices"] == [50]
    assert "works with whole batches only" in result["problems"][0]
    assert log.read_text() == "xx"


@pytest.mark.extended
def test_tensors_of_objects_of_own_classes_are_put_into_the_scripts_own(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("objects"))
    result, _ = steps.redo("explain", script("objects"))
    assert is_the_same(result), result
    assert (result["samples"], result["indices"]) == ([bad_sample(steps)], [50])
    result, _ = steps.redo("minimize", script("objects"))
    assert is_the_same(result), result
    assert result["indices"] == [50]


@pytest.mark.slow
def test_what_cannot_be_kept_of_a_batch_is_told_twice(reprokit: Reprokit) -> None:
    reprokit.script("train.py", script("nothing_kept"))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", *command)
    assert done.returncode == 123, done.stderr
    assert "without its __main__.Opaque" in done.stderr
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    for mode in ("reproduce", "explain", "minimize"):
        done = reprokit.run("snapshot", mode, snapshot, *command)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Opaque" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "operation"),
    rest_slow([("own_line", "aten::div")], extended=[("reward", "aten::log")]),
)
def test_a_line_of_the_script_that_makes_nan_of_a_finite_batch_is_named(
    tmp_path: Path, case: str, operation: str
) -> None:
    steps = captured(tmp_path, script(case))
    result, _ = steps.redo("explain", script(case))
    assert is_the_same(result), result
    assert result["operation"] == operation
    assert result["where"][0][1] == line_of(case, script(case))
    assert "before any operator" not in result["words"]


@pytest.mark.slow
@pytest.mark.parametrize("case", rest_slow(["sliced"], extended=["by_numpy", "episodes"]))
def test_a_line_of_the_script_that_no_operator_tells_is_named(tmp_path: Path, case: str) -> None:
    steps = captured(tmp_path, script(case))
    result, _ = steps.redo("explain", script(case))
    assert is_the_same(result), result
    assert [place[1] for place in result["where"]] == [line_of(case, script(case))]
    assert f"from the line {result['where'][0][0]}:{line_of(case, script(case))} of the script" in result["words"]
    assert "before any operator" not in result["words"]


@pytest.mark.extended
def test_a_line_that_nobody_knows_is_not_guessed(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("attribute"))
    result, _ = steps.redo("explain", script("attribute"))
    assert is_the_same(result), result
    assert "no operator of this process made it, nor is the script's line known" in result["words"]


@pytest.mark.extended
def test_other_gradients_than_captured_are_no_success(reprokit: Reprokit) -> None:
    """The script computes with what no snapshot knows."""
    reprokit.script("train.py", script("other_gradients").replace('int.from_bytes(os.urandom(3), "big")', "3"))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", *command)
    assert done.returncode == 123, done.stderr
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    for mode in ("reproduce", "explain"):
        done = reprokit.run("snapshot", mode, snapshot, "--json", *command)
        result: dict[str, Any] = json.loads(done.stdout)
        jsonschema.validate(result, schema("snapshot-result"))
        assert result["gradients"]["different"]
        assert done.returncode == 1, done.stderr
    assert "other gradients" in reprokit.run("snapshot", "explain", snapshot, *command).stdout
