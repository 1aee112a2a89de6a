"""Real trainings that set no seed: bare runs and a recording differ, and each replay is equal to it.

A replay is always compared with the recording, never with another replay: two replays could agree on
something that the recording never was.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import Done, Reprokit

TRAININGS = Path(__file__).parent / "trainings"
EXAMPLES = Path(__file__).parent.parent / "examples"


@dataclass(frozen=True)
class Training:
    """A command, the variables it needs, and what its replays must report."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    all_exact: bool = True  # every request answered by the next event of its own thread
    printed: bool = True  # the training prints a digest of its weights
    replays: int = 1  # more in make test-extended, and two bare runs before them


@pytest.fixture(autouse=True)
def _all_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let frameworks import all that they find, as they do for users."""
    monkeypatch.delenv("PYTHONPATH")


def script(name: str, *arguments: str, **options: Any) -> Training:
    return Training([sys.executable, str(TRAININGS / name), *arguments], **options)


QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
TENSORFLOW: dict[str, Any] = {"variables": QUIET}

CASES = [
    # joblib names its messages in whichever thread comes first.
    pytest.param(script("numpy_sklearn.py", all_exact=False), id="numpy-sklearn-two-jobs", marks=pytest.mark.extended),
    pytest.param(
        script("pytorch_workers.py", "0", "none", replays=3),
        id="pytorch",
        marks=[pytest.mark.torch, pytest.mark.extended],
    ),
    pytest.param(
        script("pytorch_workers.py", "2", "fork"),
        id="pytorch-two-workers-fork",
        marks=[pytest.mark.torch, pytest.mark.extended],
    ),
    pytest.param(
        script("pytorch_workers.py", "2", "spawn"),
        id="pytorch-two-workers-spawn",
        marks=[pytest.mark.torch, pytest.mark.extended],
    ),
    pytest.param(
        script("pytorch_threads.py"), id="pytorch-four-threads", marks=[pytest.mark.torch, pytest.mark.extended]
    ),
    pytest.param(
        script("keras_cnn.py", **TENSORFLOW), id="keras-cnn", marks=[pytest.mark.tensorflow, pytest.mark.extended]
    ),
    pytest.param(
        script("keras_lstm.py", **TENSORFLOW), id="keras-lstm", marks=[pytest.mark.tensorflow, pytest.mark.extended]
    ),
    pytest.param(
        script("tensorflow_function.py", **TENSORFLOW),
        id="tf-function",
        marks=[pytest.mark.tensorflow, pytest.mark.extended],
    ),
    pytest.param(script("numpy_unseeded.py", printed=False), id="numpy"),
    pytest.param(script("xgboost_digits.py"), id="xgboost", marks=[pytest.mark.xgboost, pytest.mark.slow]),
    pytest.param(script("jax_dropout.py"), id="jax", marks=pytest.mark.slow),
    pytest.param(
        script("pytorch_cuda.py", all_exact=False), id="pytorch-cuda", marks=[pytest.mark.gpu, pytest.mark.torch]
    ),
    *(
        pytest.param(
            script("pytorch_cuda_kinds.py", kind, all_exact=False),
            id=f"pytorch-cuda-{kind}",
            marks=[pytest.mark.gpu, pytest.mark.torch],
        )
        for kind in ("mixed", "compiled", "graphed", "ddp", "fsdp")
    ),
]


def run_bare(training: Training, directory: Path) -> str:
    done = subprocess.run(
        training.command,
        cwd=directory,
        env=os.environ | training.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def verified(reprokit: Reprokit, replayed: str) -> dict[str, Any]:
    done = reprokit.run("verify", "recorded", replayed, "--json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def everything_is_accounted_for(facts: dict[str, Any]) -> None:
    """By the proof that strace gave beside the recording."""
    assert facts["proof"]["unaccounted"] == []
    assert facts["proof"]["problem"] == ""
    assert facts["proof"]["requests"] > 0


def record(reprokit: Reprokit, command: list[str], variables: dict[str, str]) -> Done:
    """With a proof where there is strace."""
    proving = ["--prove"] if shutil.which("strace") else []
    done = reprokit.run("record", *proving, "-o", "recorded", "--", *command, environment=variables)
    assert done.returncode == 0, done.stderr[-2000:]
    if proving:
        everything_is_accounted_for(reprokit.facts("recorded"))
    return done


def reproduces(training: Training, reprokit: Reprokit) -> None:
    bare = [run_bare(training, reprokit.directory) for _ in range(min(training.replays, 2))]
    assert len(set(bare)) == len(bare)
    printed, _ = recorded_and_replayed(training, reprokit)
    assert printed not in bare


def recorded_and_replayed(training: Training, reprokit: Reprokit) -> tuple[str, dict[str, str]]:
    """Return what the recording printed, and the verdict on each category of its last replay."""
    recorded = record(reprokit, training.command, training.variables)
    if training.printed:
        assert re.search(r"[0-9a-f]{64}$", recorded.stdout.strip())
    verdicts = {}
    for number in range(training.replays):
        name = f"replayed{number}"
        replayed = reprokit.run("replay", "recorded", "-o", name, environment=training.variables)
        assert replayed.returncode == 0, replayed.stderr[-2000:]
        assert replayed.stdout == recorded.stdout
        verdicts = {category["name"]: category["verdict"] for category in verified(reprokit, name)["categories"]}
        fidelity = reprokit.facts(name)["fidelity"]
        assert fidelity["exact"] > 0
        assert fidelity["live"] == 0
        if training.all_exact:
            assert (fidelity["moved"], fidelity["derived"], fidelity["unused"]) == (0, 0, 0)
    return recorded.stdout, verdicts


@pytest.mark.parametrize("training", CASES)
def test_training(training: Training, reprokit: Reprokit) -> None:
    reproduces(training, reprokit)


@pytest.mark.extended
@pytest.mark.torch
def test_webdataset(reprokit: Reprokit) -> None:
    """It shuffles by the process id and the time, which is no entropy, in the main process and in workers."""
    reproduces(script("webdataset_shuffled.py"), reprokit)
    shown = reprokit.run("show", "replayed0").stdout
    replaced = re.findall(r"process (\S+): \d seeds? replaced by the recorded, first webdataset/filters.py", shown)
    assert replaced == ["0", "0/1", "0/2"]


@pytest.mark.slow
@pytest.mark.tf114
@pytest.mark.parametrize(
    "model",
    [
        pytest.param("LeNet-1", marks=pytest.mark.extended),
        pytest.param("LeNet-4", marks=pytest.mark.extended),
        "LeNet-5",
    ],
)
def test_lenet_on_tensorflow_1_14(model: str, reprokit: Reprokit) -> None:
    """As in the paper, on CPython 3.7 with NumPy 1.16, in an environment without reprokit."""
    python = os.environ["REPROKIT_TF114_PYTHON"]
    without = subprocess.run(
        [python, "-c", "import reprokit"], cwd=reprokit.directory, capture_output=True, check=False
    )
    assert b"ModuleNotFoundError" in without.stderr
    command = [python, str(EXAMPLES / "lenet_tensorflow.py"), "--model", model, "--epochs", "1"]
    reproduces(Training(command, variables=QUIET, all_exact=False, printed=False), reprokit)


@pytest.mark.extended
@pytest.mark.torch
def test_two_ranks(reprokit: Reprokit) -> None:
    """torchrun with gloo: the ranks draw different bytes, and each draws its own again."""

    def command() -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [*launcher, str(TRAININGS / "pytorch_ranks.py")]

    def results(name: str) -> dict[str, str]:
        directory = reprokit.directory / name
        directory.mkdir()
        return {"RESULTS": str(directory), "OMP_NUM_THREADS": "1"}

    def read(name: str) -> list[str]:
        return [(reprokit.directory / name / f"rank{rank}.txt").read_text() for rank in range(2)]

    run_bare(Training(command(), results("bare")), reprokit.directory)
    record(reprokit, command(), results("recorded-results"))
    assert read("bare") != read("recorded-results")
    digests = [line.split()[2] for line in read("recorded-results")]
    assert digests[0] != digests[1]
    replayed = reprokit.run("replay", "recorded", "-o", "replayed", environment=results("replayed-results"))
    assert replayed.returncode == 0, replayed.stderr[-2000:]
    assert read("replayed-results") == read("recorded-results")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("catboost") is None, reason="CatBoost is not installed")
def test_catboost(reprokit: Reprokit) -> None:
    """Its model has an id and a time in it, and its logs the time of each iteration."""
    command = [sys.executable, str(TRAININGS / "catboost_digits.py")]
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout == recorded.stdout != ""
    assert "seeds: 0 as the training asked, 1 given again as recorded" in replayed.stderr
    verified = reprokit.run("verify", "recorded", "replayed", "--all")
    assert verified.returncode == 0, verified.stdout
    assert "CatBoostClassifier.fit" in verified.stdout
    assert "predictions of CatBoostClassifier.predict_proba" in verified.stdout
    model = (reprokit.directory / "model.cbm").read_bytes()
    reprokit.run("record", "-o", "other", "--", *command)
    (reprokit.directory / "before.cbm").write_bytes(model)
    found = reprokit.run("diff", "before.cbm", "model.cbm")
    assert found.returncode == 1
    assert "before.cbm/trees" in found.stdout
    assert "model_guid" not in found.stdout
