"""Runs without a shim: what is taken down of them, seeds from outside, and what a run took."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from reprokit.model.plan import RUN, Plan
from reprokit.model.states import not_loaded
from reprokit.run.interruption import Interruption
from reprokit.run.launcher_process import LaunchResult, execute
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.runs import compare
from tests import number_files
from tests.support import training_text

WRITES = training_text("study_outputs.py")


def made(directory: Path, name: str, script: str, **values: object) -> tuple[RunDirectory, LaunchResult]:
    """Run a script in a directory."""
    (directory / "script.py").write_text(script)
    plan = Plan(
        mode=RUN,
        command=(sys.executable, "script.py"),
        working_directory=directory,
        output=directory.with_name(name),
        observed=True,
    )
    executed = execute(msgspec.structs.replace(plan, **values), Interruption())
    return RunDirectory(directory.with_name(name)), executed


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with files in it."""
    directory = tmp_path / "work"
    (directory / "kept").mkdir(parents=True)
    (directory / "environment").mkdir()
    (directory / "environment" / "pyvenv.cfg").touch()
    (directory / "old").write_text("as it was")
    (directory / "untouched").write_text("as it was")
    return directory


def test_an_observed_run_holds_what_a_recording_would_without_entropy(place: Path) -> None:
    runs = [made(place, name, WRITES, aside=(place / "kept",))[0] for name in ("one", "two")]
    outputs = runs[0].outputs()
    assert outputs is not None
    assert [file.path for file in outputs.files] == ["new", "old", "sub/odd\n name"]
    lines = number_files.of_run(runs[0].path)
    assert [line["value"]["decimal"] for line in lines if line["k"] == "log"] == [1.5]
    assert {(line["p"], line["argument"]) for line in lines if line["k"] == "seed"} == {
        ("0/1", "5"),
        ("0/started", "6"),
    }
    assert not (runs[0].path / "entropy").exists()
    assert runs[0].run.metrics is not None
    comparison = compare(runs[0].path, runs[1].path)
    differing = [child.name for child in comparison.tree.children if child.verdict.differs]
    assert differing == ["random states"]  # of generators that nobody has seeded


def test_an_untouched_run_has_nothing_of_reprokit_in_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPROKIT_TF114_PYTHON", "PYTHONPATH"):  # the tests' own
        monkeypatch.delenv(name, raising=False)
    script = """
import os, sys
assert not [name for name in os.environ if "REPROKIT" in name]
assert "reprokit" not in os.environ.get("LD_PRELOAD", "") + os.environ.get("PYTHONPATH", "")
assert not [name for name in sys.modules if "reprokit" in name]
assert "reprokit" not in open("/proc/self/maps").read().replace(sys.prefix, "")
open("out", "w").write("x")
raise SystemExit(7)
"""
    run, executed = made(place, "one", script, observed=False, untouched=True)
    assert executed.ended.exit_code == 7
    outputs = run.outputs()
    assert outputs is not None
    assert [file.path for file in outputs.files] == ["out"]
    assert run.run.agent == not_loaded("the command was left untouched", "not-observed")


def test_what_a_run_took_is_that_of_all_its_processes(place: Path) -> None:
    script = """
import subprocess, sys
code = "x = bytearray(200 << 20); sum(range(3_000_000))"
subprocess.run([sys.executable, "-c", code], check=True)
"""
    executed = made(place, "one", script)[1]
    assert executed.used.memory > 200 << 20
    assert 0.02 < executed.used.processor < executed.processor + 0.01


def test_a_run_that_takes_too_long_is_ended(place: Path) -> None:
    run, executed = made(place, "one", "import time; time.sleep(1000)", timeout=0.3)
    assert executed.ended.signal_name == "SIGTERM"
    assert run.run.duration is not None
    assert run.run.duration >= 0.3


DRAWS = training_text("study_draws.py")


def test_a_seed_from_outside_is_that_of_a_script(place: Path) -> None:
    import random

    import numpy as np

    run, _ = made(place, "one", DRAWS, patches=("seed=42",))
    lines = number_files.of_run(run.path)
    values = {line["name"]: line["value"]["decimal"] for line in lines if line["k"] == "log"}
    assert values["python"] == random.Random(42).random()
    assert values["numpy"] == np.random.RandomState(42).random()
    again, _ = made(place, "two", DRAWS, patches=("seed=42",))
    assert compare(run.path, again.path).identical
    assert [line for line in lines if line["k"] == "seed"] == []  # no script has seeded
    (patch,) = run.run.patches
    assert (patch.id, patch.value, patch.state, patch.variables) == ("seed", "42", "applied", {"PYTHONHASHSEED": "42"})
    assert patch.warnings


@pytest.mark.extended
@pytest.mark.torch
def test_a_seed_from_outside_reaches_pytorch(place: Path) -> None:
    import torch

    script = "import torch, reprokit\nreprokit.log(step=0, value=torch.rand(1).item())"
    run, _ = made(place, "one", script, patches=("seed=7",))
    lines = number_files.of_run(run.path)
    drawn = torch.rand(1, generator=torch.Generator().manual_seed(7)).item()
    assert [line["value"]["decimal"] for line in lines if line["k"] == "log"] == [drawn]
    assert [line for line in lines if line["k"] == "seed"] == []


@pytest.mark.extended
@pytest.mark.tensorflow
def test_a_seed_from_outside_reaches_tensorflow(place: Path) -> None:
    script = "import tensorflow as tf, reprokit\nreprokit.log(step=0, value=float(tf.random.uniform(())))"
    values = []
    for name in ("one", "two"):
        run, _ = made(place, name, script, patches=("seed=7",))
        lines = number_files.of_run(run.path)
        values += [line["value"]["decimal"] for line in lines if line["k"] == "log"]
        assert [line for line in lines if line["k"] == "seed"] == []
    assert values[0] == values[1]
