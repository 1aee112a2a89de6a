"""Weights that a step's own update ruins, in TensorFlow 2 and Keras 3: the state before it is captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.agent.capture.store import SnapshotFile
from tests.capture.tensorflow_steps import Steps
from tests.support import rest_slow, training_text

pytestmark = pytest.mark.tensorflow

SCRIPT = training_text("tensorflow_ruined.py")
TRAININGS = {
    "fit": "fit('fit', jit_compile=False)",
    "function": "loop('function', tf.function)",
    "eager": "loop('eager', lambda step: step)",
    "fit-xla": "fit('fit-xla', jit_compile=True)",
    "function-xla": "loop('function-xla', tf.function(jit_compile=True))",
    "fit-eager": "fit('fit-eager', run_eagerly=True)",
}
FEW = ["fit", "function", "eager"]


def script(*names: str) -> str:
    made = ", ".join(f"lambda: {TRAININGS[name]}" for name in names)
    return SCRIPT.replace("TRAININGS = []", f"TRAININGS = [{made}]")


def finite(path: Path) -> bool:
    """Whether all numbers of the models and optimizers of a snapshot are finite."""
    file = SnapshotFile(str(path))
    kept = [file.tensors[name] for name in file.tensors if name.startswith(("model.", "optimizer."))]
    return all(numpy.isfinite(numpy.frombuffer(one.data, "f4")).all() for one in kept if one.dtype == "F32")


@pytest.fixture(scope="module", params=rest_slow([FEW], extended=[list(TRAININGS)]), ids=["few", "all"])
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Steps, list[Any]]:
    """Trainings that leave the step out, and what each said."""
    found = Steps(tmp_path_factory.mktemp("steps"))
    done = found.capture(script(*request.param), "skip", max_snapshots=10)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["name"] for one in said] == request.param
    return found, said


@pytest.mark.slow
def test_an_update_that_ruins_weights_is_undone(steps: tuple[Steps, list[Any]]) -> None:
    for one in steps[1]:
        assert (one["finite"], one["steps"]) == (True, 7), one


@pytest.mark.slow
def test_the_snapshot_holds_the_state_before_the_update(steps: tuple[Steps, list[Any]]) -> None:
    assert len(steps[0].snapshots) == len(steps[1])
    for number, path in enumerate(steps[0].snapshots):
        header = steps[0].header(number)
        trigger = header["trigger"]
        assert (header["step"], trigger["kind"]) == (3, "parameter"), path
        assert trigger["name"].endswith("/kernel"), path
        assert "was_before" not in trigger, path
        assert header["batches"][0]["samples"] == 8, path
        assert finite(path), path


@pytest.mark.extended
@pytest.mark.parametrize("name", ["function-xla", "fit", "function", "eager", "fit-xla", "fit-eager"])
def test_the_update_ruins_them_again(tmp_path: Path, name: str) -> None:
    steps = Steps(tmp_path)
    assert steps.capture(script(name)).returncode == 123
    found, done = steps.redo("explain", script(name))
    assert done.returncode == 0, done.stderr
    assert found["reproduced"] is True
    assert found["trigger"]["kind"] == "parameter"
    assert found["gradients"] == {"equal": 4, "different": [], "nonfinite_equal": True}
    assert found["loss"]["equal"] is True
    assert found["words"].startswith("Mul overflows float32")


@pytest.mark.extended
def test_of_large_weights_it_is_said_that_they_were_ruined_before(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    done = steps.capture(SCRIPT.replace("TRAININGS = []", "TRAININGS = [lambda: large('large')]"))
    assert done.returncode == 123, done.stderr
    trigger = steps.header()["trigger"]
    assert (steps.header()["step"], trigger["kind"], trigger["was_before"]) == (4, "parameter", True)
    assert "was not finite before the step" in done.stderr


OWN_LINES = training_text("tensorflow_own_lines.py")


@pytest.mark.extended
@pytest.mark.parametrize("by_numpy", [False, True])
def test_the_line_that_made_a_finite_batch_not_finite_is_named(tmp_path: Path, by_numpy: bool) -> None:
    text = OWN_LINES.replace("BY_NUMPY = False", f"BY_NUMPY = {by_numpy}")
    wanted = "batch = (numbers" if by_numpy else "batch = (batch"
    line = next(number for number, line in enumerate(text.splitlines(), 1) if wanted in line)
    steps = Steps(tmp_path)
    assert steps.capture(text).returncode == 123
    found, done = steps.redo("explain", text)
    assert done.returncode == 0, done.stderr
    assert found["reproduced"] is True
    assert "batch was not finite" not in found["words"]
    assert found["where"][0][1:] == [line, "step"]
    assert found["operation"] == (None if by_numpy else "RealDiv")
