"""JAX: steps of jitted functions that turn NaN are captured, executed again, and explained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.capture import load
from reprokit.run_files.rundir import RunDirectory
from tests.capture.tensorflow_steps import captured, line_of
from tests.support import Reprokit, rest_slow, training_text

pytestmark = pytest.mark.slow

SCRIPT = "jax_captured.py"
# Case: what the capture says of step 5, the mark of the line that began it, the primitive, and words on it.
STEPS = {
    "optax": ("the loss is nan", "# divided", "div", "0/0 is NaN; 1 of 1 divisors is 0"),
    "donated": ("the loss is nan", "# divided", "div", "0/0 is NaN; 1 of 1 divisors is 0"),
    "flax": ("the loss is -inf", "# logarithm", "log", "log of 0 is infinite; 16 of 16 inputs are 0"),
    "equinox": (
        "model.layers[1].weight is not finite after the update (8 of 8 elements)",
        "# root",
        "div",
        "a division by 0 is infinite; 16 of 16 divisors are 0",
    ),
    "nnx": ("the loss is inf", "# exponential", "exp", "exp overflows float32 above 88.72"),
    "scan": (
        "params['hidden'] is not finite after the update (32 of 32 elements)",
        "# scanned",
        "div",
        "in iteration 2 of 4 (from 0) of the scan at",
    ),
    "hand": ("the loss is nan", "# given", "dot_general", "x was not finite before any operator worked on it"),
    "rate": ("weights is not finite after the update (4 of 4 elements)", "# updated", "mul", "mul overflows float32"),
}


def script(case: str) -> str:
    return training_text(SCRIPT, case)


FEW = ["donated", "flax", "scan"]


@pytest.mark.parametrize("case", rest_slow(FEW, extended=[case for case in STEPS if case not in FEW]))
def test_a_step_is_captured_executed_again_and_explained(tmp_path: Path, case: str) -> None:
    said, mark, operation, words = STEPS[case]
    steps = captured(tmp_path, script(case))
    header = steps.header()
    assert (header["framework"], header["step"]) == ("jax", 5)
    assert not list(tmp_path.rglob("*.pkl"))
    if case == "nnx":  # which passes on lists of arrays
        assert header["also"][1]["name"] == "model.hidden.kernel.value"
    again, _ = steps.redo("reproduce", script(case))
    assert again["reproduced"], again
    assert again["gradients"] == {"equal": len(header["gradient_digests"]), "different": [], "nonfinite_equal": True}
    assert load(steps.snapshots[0]).trigger == said
    explained, _ = steps.redo("explain", script(case))
    assert explained["operation"] == operation, explained
    assert words in explained["words"]
    assert explained["where"][0][:2] == [str(tmp_path / "train.py"), line_of(mark, script(case))]


def test_a_step_of_another_script_has_other_outputs(tmp_path: Path) -> None:
    steps = captured(tmp_path, script("equinox"))
    assert len(load(steps.snapshots[0]).gradients) == 3  # the other outputs are finite, and their bits tell
    again, _ = steps.redo("reproduce", script("equinox").replace("RATE = 1e-2", "RATE = 2e-2"))
    assert again["reproduced"]
    assert "result[1][0].layers[0].weight" in again["gradients"]["different"]
    other, _ = steps.redo("reproduce", script("equinox").replace("eqx.nn.MLP(4, 1, 8, 1,", "eqx.nn.MLP(4, 1, 8, 2,"))
    assert "it is another step" in other["trouble"]
    cut, _ = steps.redo("minimize", script("equinox"))
    assert "steps of JAX cannot be minimized" in cut["trouble"]


@pytest.mark.parametrize("case", rest_slow(["+donated", "+nnx"], extended=["+flax", "+equinox"]))
def test_a_healthy_training_has_the_same_bits(tmp_path: Path, case: str) -> None:
    (tmp_path / "train.py").write_text(script(case))
    command = [sys.executable, "train.py"]
    bare = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    runs = Reprokit(tmp_path)
    done = runs.run("record", "-o", "RUN", "--on-nan", "capture", "--", *command)
    assert (done.returncode, done.stdout) == (0, bare.stdout), done.stderr
    assert len(bare.stdout.splitlines()) == 8
    assert "captured" not in done.stderr
    assert not RunDirectory(tmp_path / "RUN").run.captures_unavailable


def test_a_recorded_step_is_explained_in_its_replay(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script("donated"))
    runs = Reprokit(tmp_path)
    done = runs.run("record", "-o", "RUN", "--on-nan", "capture", "--", sys.executable, "train.py")
    assert done.returncode == 123, done.stderr
    assert "captured: step 5: the loss is nan; snapshot: " in done.stderr
    assert len(done.stdout.splitlines()) == 5
    (snapshot,) = (tmp_path / "RUN" / "snapshots").iterdir()
    explained = runs.run("snapshot", "explain", str(snapshot))
    assert (explained.returncode, explained.stdout.splitlines()[0][:11]) == (0, "0/0 is NaN;"), explained.stderr
    assert "results    9 of 9 are bitwise as captured" in explained.stdout
    assert "explained from the snapshot alone" not in explained.stderr
    assert "8 of 9 are not finite" in runs.run("snapshot", "show", str(snapshot)).stdout


@pytest.mark.parametrize(
    ("case", "action", "reason"),
    [
        ("donated", "skip", "needs-capture"),
        ("eager", "capture", "needs-jit"),
        ("sharded", "capture", "needs-one-device"),
    ],
)
def test_what_is_not_captured_is_said_once(tmp_path: Path, case: str, action: str, reason: str) -> None:
    (tmp_path / "train.py").write_text(script(case))
    runs = Reprokit(tmp_path)
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = ("run", "-o", "RUN", "--on-nan", action, "--", sys.executable, "train.py")
    done = runs.run(*command, environment=devices)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 8), done.stderr
    (said,) = RunDirectory(tmp_path / "RUN").run.captures_unavailable
    assert (said.framework, said.reason) == ("jax", reason)
    assert done.stderr.count(f"steps of jax {said.version} are not captured: ") == 1
