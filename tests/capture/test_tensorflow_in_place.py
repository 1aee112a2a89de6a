"""TensorFlow: a captured step is explained where a replay of its recording makes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.capture.tensorflow_steps import line_of, validate
from tests.capture.test_torch_in_place import captured
from tests.support import Reprokit

pytestmark = pytest.mark.tensorflow
SCRIPT = Path(__file__).parents[1] / "trainings" / "tensorflow_in_place.py"


@pytest.mark.parametrize(
    ("case", "operation", "samples"),
    [
        pytest.param(case, operation, samples, id=case, marks=mark)
        for case, operation, samples, mark in (
            ("phases", "RealDiv", True, pytest.mark.extended),
            ("prefetched", "SqrtGrad", False, pytest.mark.slow),
            ("fit", "Log", True, pytest.mark.extended),
            ("iterated", "Log", True, pytest.mark.extended),
            ("views", "RealDiv", False, pytest.mark.extended),
            ("functions", "Log", False, pytest.mark.extended),
        )
    ],
)
def test_it_is_named_by_operation_and_line(reprokit: Reprokit, case: str, operation: str, samples: bool) -> None:
    snapshot = captured(reprokit, case, SCRIPT)
    done = reprokit.run("snapshot", "explain", str(snapshot), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    validate("snapshot-result", found)
    assert "replaying the recording up to step 6" in done.stderr
    assert "alone" not in done.stderr
    assert (found["operation"], found["samples"]) == (operation, [2] if samples else None)
    place, line = str(reprokit.directory / "train.py"), line_of(case, SCRIPT.read_text())
    assert [place, line] in [where[:2] for where in found["where"]]


@pytest.mark.extended
@pytest.mark.parametrize("case", ["phases", "prefetched"])
def test_the_snapshot_alone_stands_for_another_step(reprokit: Reprokit, case: str) -> None:
    """The script's first step is another function's, or of another batch than it fetched last."""
    snapshot = captured(reprokit, case, SCRIPT)
    words = ("--snapshot-only", "--json", "--", sys.executable, "train.py", case)
    done = reprokit.run("snapshot", "explain", str(snapshot), *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not json.loads(done.stdout)["reproduced"]
