"""Two ranks of a PyTorch training capture the same step, each with its own batch, and neither waits in vain."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.capture import Snapshot, load
from tests.capture.schema import check_schema
from tests.support import Done, Reprokit

torch: Any = pytest.importorskip("torch")

SCRIPT = str(Path(__file__).parents[1] / "trainings" / "captured_ranks.py")
# By training: the step, the rank where it happened, and what its trigger says there and on the other rank.
SAID = {
    "loss": (2, 1, "the loss is inf", "the loss is not finite on rank 1"),
    "gradient": (3, 0, "gradient of 0.weight is not finite", "gradient of 0.weight is not finite"),
    "condition": (4, 0, "loss>900", "a condition holds on rank 0"),
    "accumulated": (5, 1, "the loss is inf", "the loss is not finite on rank 1"),
    "reduced_by_hand": (6, 1, "the loss is inf", "the loss is not finite on rank 1"),
    "clipped": (7, 0, "the loss is inf", "the loss is not finite on rank 0"),
    "scaled": (8, 1, "the loss is inf", "the loss is not finite on rank 1"),
    "gradient_there": (9, 1, "gradient of 0.weight is not finite", "gradient of 0.weight is not finite"),
}
OPTIONS = "--capture-when", "loss>900", "--max-snapshots", "9", "-o", "RUN"


@pytest.fixture(scope="module")
def skipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """All trainings, started by torch.multiprocessing.spawn; the bad steps are left out."""
    directory = tmp_path_factory.mktemp("skipped")
    command = [sys.executable, SCRIPT, str(directory)]
    return directory, Reprokit(directory).run("run", "--on-nan", "skip", *OPTIONS, "--", *command)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """One of them under torchrun, which ends all ranks as soon as one has ended."""
    directory = tmp_path_factory.mktemp("stopped")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, SCRIPT, str(directory), "loss"]
    return directory, Reprokit(directory).run("run", "--on-nan", "capture", *OPTIONS, "--", *command)


def check(directory: Path, name: str, rank: int) -> Snapshot:
    """A rank's snapshot holds its own state and batches, as they were at the start of the step."""
    step = SAID[name][0]
    snapshot = load(directory / "RUN" / "snapshots" / f"step-{step:08d}-rank{rank}")
    assert (snapshot.header["step"], snapshot.header["rank"], snapshot.header["world"]) == (step, rank, 2)
    check_schema(snapshot)
    expected = torch.load(directory / f"{name}-{rank}.pt")
    (model,) = snapshot.header["models"]
    assert {part.removeprefix("module.") for part in model["tensors"]} == {
        part.removeprefix("module.") for part in expected["model"]
    }
    for part, tensor in expected["model"].items():
        kept = model["tensors"].get(part) or model["tensors"][part.removeprefix("module.")]
        assert snapshot.tensors[kept].tobytes() == tensor.numpy().tobytes(), part
    loaded = [batch for batch in snapshot.header["batches"] if batch["from"] == "loader"]
    assert len(loaded) == len(expected["batches"])
    for batch, wanted in zip(snapshot.batches, expected["batches"], strict=False):
        assert [one.tolist() for one in batch] == [one.tolist() for one in wanted]
    return snapshot


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAID))
def test_both_ranks_capture_and_leave_out_the_same_step(name: str, skipped: tuple[Path, Done]) -> None:
    directory, done = skipped
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        snapshot = check(directory, name, rank)
        assert f"{name} trained on rank {rank}" in done.stdout
        step, where, here, there = SAID[name]
        said = re.findall(rf"captured: step {step}: (.*); snapshot: .*-rank{rank};", done.stderr)
        assert len(said) == 1
        assert said[0].startswith(here if rank == where else there)
        assert snapshot.header["trigger"]["began_here"] is (rank == where)
        if name.startswith("gradient"):
            assert set(snapshot.gradients) >= {"0.weight"}
        else:
            assert not snapshot.gradients
            assert len(snapshot.header["gradient_digests"]) == 5  # of 6: one told the other rank
            assert len(snapshot.header["given_up"]) == 1
            assert any("was used to tell all ranks" in note for note in snapshot.header["notes"])


@pytest.mark.slow
def test_no_rank_is_ended_before_it_has_saved(stopped: tuple[Path, Done]) -> None:
    directory, done = stopped
    assert done.returncode == 1  # torchrun's own
    assert "exitcode  : 123" in done.stderr
    assert "trained" not in done.stdout
    for rank in (0, 1):
        check(directory, "loss", rank)
    assert len(list((directory / "RUN" / "snapshots").iterdir())) == 2


@pytest.mark.slow
def test_the_command_names_the_rank_on_which_it_went_wrong(tmp_path: Path) -> None:
    """All ranks have a gradient that is not finite once they have been reduced, and one computed it."""
    command = [sys.executable, SCRIPT, str(tmp_path), "gradient_there"]
    done = Reprokit(tmp_path).run("run", "--on-nan", "skip", *OPTIONS, "--", *command)
    assert done.returncode == 0, done.stderr
    assert "reprokit snapshot explain RUN/snapshots/step-00000009-rank1 -- " in done.stderr


@pytest.mark.extended
def test_the_rank_on_which_it_went_wrong_is_explained_in_a_replay_of_all(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, SCRIPT, str(tmp_path), "gradient_there"]
    recorded = Reprokit(tmp_path).run("record", "--on-nan", "capture", "-o", "RUN", "--", *command)
    assert recorded.returncode == 1, recorded.stderr  # torchrun's own
    done = Reprokit(tmp_path).run("snapshot", "explain", "RUN/snapshots/step-00000009-rank1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["operation"], found["where"][0][2]) == ("SqrtBackward0", "loss_of")
    assert "alone" not in done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["wrapped", "distributed"])
def test_shards_are_kept_rank_by_rank(tmp_path: Path, kind: str) -> None:
    script = str(Path(SCRIPT).with_name("captured_shards.py"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, kind]
    done = Reprokit(tmp_path).run("run", "--on-nan", "skip", "-o", "RUN", "--", *torchrun)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0: finite True", "rank 1: finite True"]
    assert done.stderr.count("the step was not applied") == 2, done.stderr
    for rank in (0, 1):
        snapshot = load(tmp_path / "RUN" / "snapshots" / f"step-00000004-rank{rank}")
        check_schema(snapshot)
        (batch,) = snapshot.batches
        assert (batch[0][0][3] == 0).all() == (rank == 1)
        elements = sum(array.size for name, array in snapshot.tensors.items() if name.startswith("model."))
        assert 0 < elements < 6 * 8 + 8 * 2 + 2  # a part of them
        assert snapshot.header["sharded"] is True
        assert snapshot.gradients
    again = Reprokit(tmp_path).run("snapshot", "reproduce", "RUN/snapshots/step-00000004-rank0", "--", *torchrun)
    assert again.returncode == 2
    assert "one rank's shards of a model (FSDP): such a step is not done again" in again.stderr
