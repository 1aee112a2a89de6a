"""Keras and TensorFlow 2 under capture: numbers of good steps, what a snapshot holds, and what happens then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest

from reprokit.agent.capture.store import SnapshotFile
from reprokit.agent.tensorflow.evaluation import is_of_tensorflow
from reprokit.run_files.rundir import RunDirectory
from tests.support import Reprokit, training_text

SCRIPT = str(Path(__file__).parent / "keras_steps.py")
NAMES = ["fit-xla", "fit-graph", "fit-eager", "loop-xla", "loop-graph", "loop-eager", "several", "scaled"]
FEW = ["fit-graph", "loop-graph", "several", "scaled"]


@dataclass(frozen=True)
class Skipped:
    """A run of trainings whose bad step was left out, and what each said."""

    directory: Path
    names: list[str]
    said: dict[str, list[str]]


def train(directory: Path, options: list[str], *words: str, status: int = 0, **variables: str) -> dict[str, list[str]]:
    """What each training said: whether its weights are finite, and their digest."""
    launcher = [sys.executable, "-m", "reprokit", "run", "-o", "run", *options, "--"] if options else []
    done = subprocess.run(
        [*launcher, sys.executable, SCRIPT, *words],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stderr[-4000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    return {**{line[0]: line[1:] for line in lines}, "stderr": done.stderr.splitlines()}


def snapshots(run: Path) -> list[SnapshotFile]:
    """Those of a run in the order in which they were written."""
    found = [SnapshotFile(str(path)) for path in (run / "snapshots").glob("step-*")]
    return sorted(found, key=lambda file: (Path(file.path) / "snapshot.json").stat().st_mtime_ns)


def array(file: SnapshotFile, name: str) -> numpy.ndarray:
    """A tensor of a snapshot."""
    tensor = file.tensors[name]
    dtype = {"F32": "f4", "I64": "i8", "U32": "u4"}[tensor.dtype]
    return numpy.frombuffer(tensor.data, dtype).reshape(tensor.shape)


@pytest.mark.extended
def test_good_steps_have_the_same_bits(tmp_path: Path) -> None:
    steady = ["fit-xla", "fit-graph", "fit-eager", "loop-xla"]  # loops in graphs differ by where tensors lie, also bare
    bare = train(tmp_path, [], "good", *steady)
    watched = train(tmp_path, ["--on-nan", "skip"], "good", *steady)
    assert all(watched[name][0] == "finite" for name in steady)
    assert {name: watched[name] for name in steady} == {name: bare[name] for name in steady}
    assert not list((tmp_path / "run" / "snapshots").glob("step-*"))


@pytest.fixture(
    scope="module",
    params=[pytest.param(FEW, marks=pytest.mark.slow), pytest.param(NAMES, marks=pytest.mark.extended)],
    ids=["few", "all"],
)
def skipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Skipped:
    """Trainings with a NaN in one batch, which is skipped."""
    directory = tmp_path_factory.mktemp("skipped")
    said = train(directory, ["--on-nan", "skip", "--max-snapshots", "20"], "bad", *request.param)
    return Skipped(directory, request.param, said)


def test_a_bad_step_is_skipped(skipped: Skipped) -> None:
    said = skipped.said
    assert [said[name][0] for name in skipped.names] == ["finite"] * len(skipped.names)
    assert said["several"] == said["fit-graph"]  # four steps an execution
    steps = [file.header["step"] for file in snapshots(skipped.directory / "run")]
    assert steps == [5] * (len(steps) - 1) + [0]  # the last after overflows of its scale


def test_a_snapshot_holds_the_state_before_the_step(skipped: Skipped) -> None:
    for name, file in zip(skipped.names, snapshots(skipped.directory / "run"), strict=True):
        header = file.header
        assert header["trigger"]["kind"] == "gradient", name
        assert header["trigger"]["name"] == "sequential/dense/kernel", name
        assert "loss" in [trigger["kind"] for trigger in header["also"]], name
        kept = [part for part in file.tensors if part.startswith(("model.", "optimizer."))]
        assert all(numpy.isfinite(array(file, part)).all() for part in kept), name
        assert header["batches"][0]["samples"] == 8, name
        bad = [part for part in file.tensors if part.startswith("batch.") and numpy.isnan(array(file, part)).any()]
        assert len(bad) == 1, name
        assert array(file, header["gradients"]["sequential/dense/kernel"]).shape == (8, 16), name
        assert {"python", "numpy", "tensorflow"} <= set(header["random"]), name
        if name != "scaled":
            assert len(header["losses"]) == 5, name
            seeds = array(file, header["models"][0]["tensors"]["seed_generator/seed_generator_state"])
            assert seeds[1] == 5, name  # one for each step before
        if name.startswith("fit"):
            assert header["epoch"] == 0
            assert header["steps_in_epoch"] == 5
            assert array(file, header["models"][0]["tensors"]["loss/count"]) == 40
    json.dumps(header)


@pytest.mark.extended
def test_stop_ends_the_training_and_its_state_can_be_restored(tmp_path: Path) -> None:
    said = train(tmp_path, ["--on-nan", "capture"], "bad", "fit-xla", "fit-graph", status=123)
    assert "fit-xla" not in said
    assert any(
        "step 5: gradient of sequential/dense/kernel is not finite (96 of 128" in line for line in said["stderr"]
    )
    (file,) = snapshots(tmp_path / "run")
    restored = train(tmp_path, [], "good", "restored", "in-code", REPROKIT_SNAPSHOT=file.path)
    assert restored["restored"][0] == "finite"
    assert restored["in-code"][0] == "finite"
    (by_script,) = (tmp_path / "by-script").glob("step-*")
    assert SnapshotFile(str(by_script)).header["trigger"]["kind"] == "activation"


@pytest.mark.slow
@pytest.mark.torch
def test_keras_on_another_backend_trains_on_and_says_that_nothing_is_captured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(training_text("keras_fit.py"))
    runs = Reprokit(tmp_path)
    command = ("record", "-o", "RUN", "--on-nan", "capture", "--capture-when", "activations")
    done = runs.run(*command, "--", sys.executable, "train.py", environment={"KERAS_BACKEND": "torch"})
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
    (said,) = RunDirectory(tmp_path / "RUN").run.captures_unavailable
    assert (said.framework, said.reason) == ("keras", "needs-keras-on-tensorflow")
    assert f"warning: steps of keras {said.version} are not captured: captures need Keras on TensorFlow" in done.stderr
    assert "captures need Keras on TensorFlow" in runs.run("show", "RUN").stdout


@pytest.mark.parametrize(
    ("module", "expected"),
    [("train.backend", True), ("train.backend.torch", True), ("keras.src.backend.torch.layer", False)],
)
def test_a_layer_is_of_tensorflow_unless_another_backend_of_keras_has_it(module: str, expected: bool) -> None:
    assert is_of_tensorflow(type("Layer", (type("Base", (), {"__module__": module}),), {})()) is expected
