"""Replicas of TensorFlow capture the same step: those of one process together, those of several each with its rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from reprokit.agent.capture.store import SnapshotError
from reprokit.agent.capture.tensorflow_redo import batches_of
from reprokit.capture import Snapshot, load
from tests.capture.schema import check_schema
from tests.support import Done, Reprokit

pytestmark = pytest.mark.tensorflow

SCRIPT = str(Path(__file__).parents[1] / "trainings" / "captured_replicas.py")
BAD = 3
NOTE = "of what each replica has for itself, as BatchNormalization's statistics, the first one's is kept"


def run(directory: Path, kind: str, action: str) -> Done:
    command = [sys.executable, SCRIPT, kind, str(directory)]
    options = ["--on-nan", action, "--capture-when", "gradient-jump>1000", "-o", "RUN"]
    return Reprokit(directory).run("run", *options, "--", *command)


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """Keras under a MirroredStrategy, without its bad step."""
    directory = tmp_path_factory.mktemp("mirrored")
    return directory, run(directory, "mirrored", "skip")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """Two workers, which their bad step ends."""
    directory = tmp_path_factory.mktemp("workers")
    return directory, run(directory, "workers", "capture")


def rows() -> tuple[Any, Any]:
    """The data of all steps."""
    x = numpy.arange(6 * 8 * 4, dtype="float32").reshape(-1, 4) / 100
    return x, x.sum(1, keepdims=True)


def snapshot_in(directory: Path, name: str) -> Snapshot:
    snapshot = load(directory / "RUN" / "snapshots" / name)
    check_schema(snapshot)
    return snapshot


@pytest.mark.slow
def test_mirrored_replicas_share_a_snapshot_with_the_batch_of_each(mirrored: tuple[Path, Done]) -> None:
    directory, done = mirrored
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"captured: step {BAD}: gradient of ") == 1
    assert done.stderr.count("warning: jumps of gradients are not looked for where there are several replicas") == 1
    snapshot = snapshot_in(directory, f"step-{BAD:08d}")
    batches = snapshot.header["batches"]
    assert [batch["replica"] for batch in batches] == [0, 1]
    x, y = rows()
    x[8 * BAD + 5] = numpy.inf
    for replica, batch in enumerate(snapshot.batches):
        part = slice(8 * BAD + 4 * replica, 8 * BAD + 4 * replica + 4)
        assert [one.tolist() for one in batch[:2]] == [x[part].tolist(), y[part].tolist()]
    assert NOTE in snapshot.header["notes"]
    assert len(snapshot.header["losses"]) == BAD


@pytest.mark.slow
def test_its_state_is_that_of_the_start_of_the_step(mirrored: tuple[Path, Done]) -> None:
    directory, _ = mirrored
    snapshot = snapshot_in(directory, f"step-{BAD:08d}")
    before = numpy.load(directory / f"after-{BAD - 1}.npz")
    kept = {
        name.split(".", 2)[2]: snapshot.tensors[name] for name in snapshot.tensors if name[:5] in ("model", "optim")
    }
    assert "sequential/batch_normalization/moving_variance" in kept
    assert set(before.files) <= set(kept)
    for name in before.files:
        assert kept[name].tobytes() == before[name].tobytes(), name


@pytest.mark.slow
def test_a_step_left_out_changes_nothing_and_the_next_ones_are_applied(mirrored: tuple[Path, Done]) -> None:
    directory, done = mirrored
    before, after, later = (numpy.load(directory / f"after-{step}.npz") for step in (BAD - 1, BAD, BAD + 1))
    assert all(before[name].tobytes() == after[name].tobytes() for name in before.files)
    assert any(before[name].tobytes() != later[name].tobytes() for name in before.files)
    assert int(later["adam/iteration"]) == BAD + 1
    assert "trained" in done.stdout


@pytest.mark.extended
def test_a_step_of_replicas_comes_to_the_same_bits_again(mirrored: tuple[Path, Done]) -> None:
    directory, _ = mirrored
    command = [sys.executable, SCRIPT, "mirrored", str(directory)]
    snapshot = f"RUN/snapshots/step-{BAD:08d}"
    done = Reprokit(directory).run("snapshot", "reproduce", "--json", snapshot, "--", *command)
    found = json.loads(done.stdout)
    assert (done.returncode, found["reproduced"]) == (0, True), found
    assert found["gradients"] == {"equal": 6, "different": [], "nonfinite_equal": True}


@pytest.mark.parametrize(
    ("mode", "origin", "world"), [("explain", "fit", 0), ("reproduce", "script", 0), ("reproduce", "fit", 2)]
)
def test_other_steps_of_replicas_are_refused(mode: str, origin: str, world: int) -> None:
    known = [{"from": origin, "replica": number, "samples": 4, "value": {"none": True}} for number in range(2)]
    file: Any = SimpleNamespace(facts=SimpleNamespace(batches=known, world=world))
    with pytest.raises(SnapshotError, match="one of several replicas"):
        batches_of(file, [], mode)


@pytest.mark.slow
def test_each_worker_captures_its_own_batch_of_the_same_step_and_stops(workers: tuple[Path, Done]) -> None:
    directory, done = workers
    assert done.returncode == 123, done.stderr
    assert f"has done step {BAD - 1}" in done.stdout
    assert f"has done step {BAD}" not in done.stdout
    for rank in (0, 1):
        snapshot = snapshot_in(directory, f"step-{BAD:08d}-rank{rank}")
        assert (snapshot.header["step"], snapshot.header["rank"], snapshot.header["world"]) == (BAD, rank, 2)
        before = numpy.load(directory / f"before-{rank}.npz")
        batch = snapshot.batches[0]
        assert [one.tolist() for one in batch[:2]] == [before["a"].tolist(), before["b"].tolist()]
        assert snapshot.tensors["model.0.weights"].tobytes() == before["weights"].tobytes()
        (momentum,) = (name for name in snapshot.tensors if "momentum" in name)
        assert snapshot.tensors[momentum].tobytes() == before["momentum"].tobytes()
    assert len(list((directory / "RUN" / "snapshots").iterdir())) == 2
