"""Captures on the CPU, on a simulated device and on a GPU: the same state, step and random numbers, one wait a step.

The simulated device (tests/trainings/simulated_device.py) is for machines without a GPU: nothing reads its memory by an
address, each wait for it is counted, and its random numbers come from where CUDA's do.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reprokit.capture
from tests.support import LIMIT, Reprokit

torch: Any = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = Path(__file__).parent.parent / "trainings" / "pytorch_device.py"
BAD = 5
WAITS = "called a synchronizing"
FAR = ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=[pytest.param("cpu", marks=pytest.mark.extended), *FAR])
def device(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def bare(device: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the training has before its bad step by itself."""
    file = tmp_path_factory.mktemp("bare") / "state.pt"
    command = [sys.executable, "-W", "always", str(SCRIPT), device, str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=2 * LIMIT)
    found: dict[str, Any] = torch.load(file, weights_only=False, map_location="cpu")
    return {**found, "waits": done.stderr.count(WAITS)}


@pytest.fixture(scope="module")
def captured(device: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("captured")
    command = ["run", "--on-nan", "capture", "-o", "RUN", "--", sys.executable, str(SCRIPT), device]
    done = Reprokit(directory).run(*command)
    assert done.returncode == 123, done.stderr
    assert done.stdout.count("stepped") == BAD
    return directory / "RUN" / "snapshots" / f"step-{BAD:08d}"


def test_the_state_is_that_before_the_step(bare: dict[str, Any], captured: Path) -> None:
    snapshot = reprokit.capture.load(captured)
    assert snapshot.trigger.startswith("gradient of weight is not finite")
    for name, tensor in bare["model"].items():
        assert snapshot.tensors[f"model.0.{name}"].tobytes() == tensor.numpy().tobytes(), name
    for array, tensor in zip(snapshot.batches[0], bare["batch"], strict=True):
        assert array.tobytes() == tensor.numpy().tobytes()
    kept = snapshot.header["random"]
    assert set(kept) == {*bare["random"], "numpy"}
    assert snapshot.tensors[kept["torch"]["tensor"]].tobytes() == bare["random"]["torch"].numpy().tobytes()
    for node in kept.get("torch.cuda", ())[:1]:
        assert snapshot.tensors[node["tensor"]].tobytes() == bare["random"]["torch.cuda"].numpy().tobytes()


def test_it_restores_on_the_cpu(bare: dict[str, Any], captured: Path, tmp_path: Path) -> None:
    script = SCRIPT.with_name("pytorch_restored.py")
    command = [sys.executable, str(script), str(captured), str(tmp_path / "state.pt")]
    subprocess.run(command, check=True, timeout=LIMIT)
    model, optimizer, random_state = torch.load(tmp_path / "state.pt", weights_only=False)
    assert {name: tensor.device.type for name, tensor in model.items()} == dict.fromkeys(bare["model"], "cpu")
    assert all(torch.equal(tensor, bare["model"][name]) for name, tensor in model.items())
    assert torch.equal(random_state, bare["random"]["torch"])
    for number, state in bare["optimizer"]["state"].items():
        for name, tensor in state.items():
            assert torch.equal(optimizer["state"][number][name], tensor), (number, name)


@pytest.mark.extended
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.extended), *FAR], indirect=True)
def test_it_is_done_again(device: str, captured: Path, tmp_path: Path) -> None:
    command = ["--", sys.executable, str(SCRIPT), device]
    done = Reprokit(tmp_path).run("snapshot", "reproduce", str(captured), *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 are bitwise as captured" in done.stdout
    done = Reprokit(tmp_path).run("snapshot", "minimize", str(captured), *command)
    assert "2 of 16 samples are enough: samples 6, 7" in done.stdout, done.stderr  # one alone has no variance
    done = Reprokit(tmp_path).run("snapshot", "explain", str(captured), *command)
    assert done.stdout.startswith("sqrt of 0 has an infinite gradient"), done.stdout + done.stderr


@pytest.mark.parametrize("device", FAR, indirect=True)
@pytest.mark.parametrize(
    ("condition", "each"),
    [
        pytest.param(None, 1, marks=pytest.mark.extended),
        pytest.param("activations", 1, marks=pytest.mark.extended),
        ("loss>9", 2),
    ],
)
def test_how_often_a_step_waits(
    device: str, bare: dict[str, Any], condition: str | None, each: int, tmp_path: Path
) -> None:
    """PyTorch itself warns of each operation that waits for the GPU."""
    command = ["--", sys.executable, "-W", "always", str(SCRIPT), device, str(tmp_path / "state.pt")]
    words = ["--capture-when", condition] if condition else []
    done = Reprokit(tmp_path).run("run", "--on-nan", "capture", *words, *command)
    assert done.returncode == 0, done.stderr
    assert bare["waits"] > 0
    held_once = 2  # the state before an update, whose parameters are tested before and after it
    assert 0 < done.stderr.count(WAITS) - bare["waits"] <= each * BAD + held_once


# The third step has what kind says: no kind of it reads a number of the device by itself.
LOOP = str(SCRIPT.with_name("device_loop.py"))


def test_several_optimizers_and_clipping_wait_once(tmp_path: Path) -> None:
    command = ["--", sys.executable, LOOP, "simulated", "fine"]
    done = Reprokit(tmp_path).run("run", "--on-nan", "capture", "--capture-when", "activations", *command)
    assert (done.returncode, done.stderr.count(WAITS)) == (0, 3), done.stderr


@pytest.mark.parametrize("device", FAR)
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("activation", "output of 0 is not finite (8 of 8 elements)"),
        pytest.param("complex", "the loss is inf", marks=pytest.mark.extended),
        ("without the operator", "the loss is inf"),
    ],
)
def test_what_is_not_finite_there_is_seen(device: str, kind: str, what: str, tmp_path: Path) -> None:
    words = ["--capture-when", "activations"] if kind == "activation" else []
    command = ["--", sys.executable, LOOP, device, kind]
    done = Reprokit(tmp_path).run("run", "--on-nan", "capture", *words, "-o", "RUN", *command)
    assert done.returncode == 123, done.stdout + done.stderr
    (snapshot,) = (tmp_path / "RUN" / "snapshots").iterdir()
    assert snapshot.name == "step-00000002"
    assert f"step 2: {what};" in done.stderr


SAID = {  # by step: in the words of the rank where it happened, and of the other one on the CPU
    2: (1, "the loss is inf", "the loss is not finite on rank 1"),
    4: (0, "output of first is not finite (4 of 32 elements)", "an output of a module is not finite on rank 0"),
}


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.extended), *FAR])
def test_ranks_hear_of_what_is_not_in_their_gradients(device: str, tmp_path: Path) -> None:
    """On the CPU by a mark that says what it was; on a device, where nobody waits for it, by gradients that are NaN."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["--", *torchrun, str(SCRIPT.with_name("device_ranks.py")), device]
    options = ["--on-nan", "skip", "--capture-when", "activations", "--max-snapshots", "9", "-o", "RUN"]
    done = Reprokit(tmp_path).run("run", *options, *command)
    assert done.returncode == 0, done.stderr
    first, second = sorted(line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("trained"))
    assert (first[1], second[1], first[2]) == ("0", "1", second[2])
    for step, (where, here, there) in SAID.items():
        for rank in (0, 1):
            words = here if rank == where else there if device == "cpu" else "gradient of last.weight is not finite"
            snapshot = reprokit.capture.load(tmp_path / "RUN" / "snapshots" / f"step-{step:08d}-rank{rank}")
            assert snapshot.trigger.startswith(words)
