"""PyTorch: a captured step is explained where a replay of its recording makes it, in the script's own computation."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.capture.tensorflow_steps import line_of, validate
from tests.support import Reprokit, rest_slow

pytestmark = pytest.mark.torch
TRAININGS = Path(__file__).parents[1] / "trainings"
SCRIPT, TURNS_NAN = TRAININGS / "captured_in_place.py", TRAININGS / "turns_nan.py"
# What trainings come to a NaN by: functions of the script, whose line that is to be named ends in their name.
USUAL = re.findall(r"\S  # (\w+)$", TURNS_NAN.read_text(), re.MULTILINE)
CASES = [  # operation, and what is known of samples
    ("own_class", "aten::div", [50]),
    ("given", None, [50]),  # the data set has it
    ("mixed", "aten::div", None),  # no row is the batch's at its place
    ("transformed", "aten::log", [50]),
    ("views", "aten::div", None),
    ("time_first", "aten::log", [50]),
    ("prefetched", "SqrtBackward0", None),
]


def captured(reprokit: Reprokit, case: str, script: Path = SCRIPT) -> Path:
    """The only snapshot of a recorded training, whose script lies beside it."""
    shutil.copy(script, reprokit.directory / "train.py")
    words = ("--on-nan", "capture", "-o", "run", "--", sys.executable, "train.py", case)
    done = reprokit.run("record", *words)
    assert done.returncode == 123, done.stderr
    (snapshot,) = (reprokit.directory / "run" / "snapshots").glob("step-*")
    return snapshot


@pytest.mark.slow
@pytest.mark.parametrize(("case", "operation", "indices"), rest_slow(CASES[:2], extended=CASES[2:]))
def test_it_is_named_by_operation_and_line(
    reprokit: Reprokit, case: str, operation: str | None, indices: list[int] | None
) -> None:
    snapshot = captured(reprokit, case)
    done = reprokit.run("snapshot", "explain", str(snapshot), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    validate("snapshot-result", found)
    assert (found["operation"], found.get("indices")) == (operation, indices)
    function = "__getitem__" if case == "transformed" else case
    assert found["where"][0] == [str(reprokit.directory / "train.py"), line_of(case, SCRIPT.read_text()), function]
    assert "replaying the recording up to step " in done.stderr
    assert "alone" not in done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("case", USUAL)
def test_each_usual_way_to_a_nan_is_named_by_its_line(reprokit: Reprokit, case: str) -> None:
    done = reprokit.run("snapshot", "explain", str(captured(reprokit, case, TURNS_NAN)), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["where"][0][:2] == [str(reprokit.directory / "train.py"), line_of(case, TURNS_NAN.read_text())]
    assert "alone" not in done.stderr


@pytest.mark.extended
def test_the_snapshot_alone_is_used_where_the_replay_is_another_training(reprokit: Reprokit) -> None:
    snapshot, script = captured(reprokit, "own_class"), reprokit.directory / "train.py"
    words = ("snapshot", "explain", str(snapshot))
    only = reprokit.run(*words, "--snapshot-only", "--", sys.executable, "train.py", "own_class")
    assert (only.returncode, only.stderr) == (0, "")
    script.write_text(script.read_text().replace("nn.Tanh()", "nn.Sigmoid()"))
    changed = reprokit.run(*words)
    assert changed.returncode == 1, changed.stderr
    assert "explained from the snapshot alone: a replay of " in changed.stderr
    assert "reproduced with other gradients than captured" in changed.stdout
    (reprokit.directory / "run" / "entropy").rename(reprokit.directory / "gone")
    assert "explained from the snapshot alone: " in reprokit.run(*words).stderr
