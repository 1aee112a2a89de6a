"""reprokit.capture in a script: a guarded loop, with and without the launcher, and what its snapshot gives back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from tests.support import Reprokit, python, training_text

GUARDED = training_text("pytorch_guarded_loop.py")


@pytest.mark.torch
def test_a_guarded_loop_goes_on_and_its_snapshot_gives_the_state_back(tmp_path: Path) -> None:
    done = subprocess.run([*python(GUARDED), "skip", "kept"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("reprokit: captured: step 3: the loss is nan; snapshot: ")
    assert done.stderr.count("\n") == 1
    absent, shape, last = done.stdout.splitlines()
    assert "0.weight" in absent
    assert shape.startswith("the snapshot is of another model: 0.weight is [6, 4] in the snapshot and [7, 4] in the")
    assert last == "done"


@pytest.mark.slow
@pytest.mark.torch
def test_a_guarded_loop_stops_and_under_the_launcher_the_command_line_decides(reprokit: Reprokit) -> None:
    words = [*python(GUARDED), "stop", "kept"]
    done = subprocess.run(words, cwd=reprokit.directory, capture_output=True, text=True)
    assert done.returncode == 123
    assert os.listdir(reprokit.directory / "kept") == ["step-00000003"]
    done = reprokit.run("run", "-o", "a", "--on-nan", "skip", "--max-snapshots", "1", "--", *words[:-1], "a/snapshots")
    assert "captured: step 3" in done.stderr
    assert os.listdir(reprokit.directory / "a" / "snapshots") == ["step-00000003"]
    assert os.listdir(reprokit.directory / "kept") == ["step-00000003"]


def test_options_of_a_guard_that_make_no_sense() -> None:
    code = """
import reprokit.capture
for options in ({"on_nan": "cry"}, {"capture_when": ["loss"]}):
    try:
        reprokit.capture.guard(None, None, **options)
    except Exception as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "on_nan='cry': choose one of capture, stop, skip, rollback",
        "'loss' is no condition; write loss>X, gradient-jump>X or activations",
    ]


FAILING = training_text("pytorch_failing_step.py")


@pytest.mark.extended
@pytest.mark.torch
def test_a_replay_captures_what_its_recording_did_not_and_another_replay_the_same(reprokit: Reprokit) -> None:
    assert reprokit.run("record", "-o", "a", "--", *python(FAILING)).stdout == "went on\n"
    for name in ("b", "c"):
        done = reprokit.run("replay", "a", "-o", name, "--on-nan", "capture")
        assert (done.returncode, done.stdout) == (123, "")
        assert " 0 moved, 0 derived, 0 live, " in done.stderr, "a capture asks for no entropy"
    same = reprokit.run("verify", "b", "c")
    assert same.returncode == 0, same.stdout
    assert "step-00000015: " in same.stdout
    schema = resources.files("reprokit").joinpath("schemas/snapshot.schema.json").read_text()
    header = reprokit.directory / "b" / "snapshots" / "step-00000015" / "snapshot.json"
    jsonschema.validate(json.loads(header.read_text()), json.loads(schema))


KERAS = training_text("keras_guarded.py")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_callback_and_a_guarded_model_of_keras(tmp_path: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(python(KERAS), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert done.stdout.count("which the snapshot lacks") == 2
    assert done.stderr.count("reprokit: captured: step ") == 2
