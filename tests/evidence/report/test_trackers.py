"""MLflow, Weights & Biases, TensorBoard and DVC themselves, with stores on this machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import COMMAND, Reprokit

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("REPROKIT_TRACKERS_PYTHON") or ROOT / ".venv-trackers" / "bin" / "python")

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-extended installs the trackers"),
]

MLFLOW = """
import random, mlflow
with mlflow.start_run():
    mlflow.log_param("rate", 0.1)
    loss = 2.0
    for step in range(5):
        loss = loss * 0.9 + random.random() * 0.01
        mlflow.log_metric("loss", loss, step=step)
"""
WANDB = """
import random, wandb
run = wandb.init(project="digits", mode="offline", config={"rate": 0.1})
for step in range(5):
    wandb.log({"loss": random.random(), "nested": {"a": step}})
wandb.finish()
"""
TENSORBOARD = """
import random
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter("logs")
for step in range(5):
    value = Summary.Value(tag="loss", simple_value=random.random())
    writer.add_event(Event(step=step, wall_time=1.0, summary=Summary(value=[value])))
writer.close()
"""
ASKING = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient()
runs = [run for one in client.search_experiments() for run in client.search_runs([one.experiment_id])]
print(json.dumps([{"id": run.info.run_id, "tags": run.data.tags, "params": run.data.params, "metrics": run.data.metrics,
    "steps": [one.step for one in client.get_metric_history(run.info.run_id, "loss")],
    "files": [one.path for one in client.list_artifacts(run.info.run_id, "reprokit")]} for run in runs]))
"""


def recorded_and_replayed(reprokit: Reprokit, script: str, environment: dict[str, str] | None = None) -> None:
    reprokit.script("train.py", script)
    command = ["--", str(PYTHON), "train.py"]
    done = reprokit.run("record", "-o", "first", *command, environment=environment)
    assert done.returncode == 0, done.stderr
    done = reprokit.run("replay", "first", "-o", "second", environment=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("store", ["file:./mlruns", "sqlite:///mlflow.db"])
def test_the_verdict_goes_to_the_run_that_the_training_opened(tmp_path: Path, store: str) -> None:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": store, "MLFLOW_ALLOW_FILE_STORE": "true"}
    environment["PYTHONPATH"] = str(ROOT)
    reprokit = Reprokit(tmp_path)

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [str(PYTHON), *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    reprokit.script("before.py", MLFLOW)
    python("before.py")  # the store is there: a replay's id is not new by itself
    recorded_and_replayed(reprokit, MLFLOW, environment)
    done = reprokit.run("verify", "first", "second")
    assert done.stdout.startswith("identical: "), done.stdout
    assert ("loss in mlruns/0/RUN: 5 values" if store.startswith("file") else "mlflow.db/metrics/") in done.stdout
    said = python("-m", "reprokit", "export", "mlflow", "first", "second", "--bundle")
    assert said.startswith("run ")
    runs = json.loads(python("-c", ASKING))
    assert len(runs) == 3
    first, second = (
        next(run for run in runs if run["tags"].get("reprokit.run.id") == reprokit.facts(name)["run_id"])
        for name in ("first", "second")
    )
    assert said.split()[1] == first["id"]
    assert second["id"] != first["id"]
    assert first["tags"]["reprokit.verdict"] == second["tags"]["reprokit.verdict"] == "identical"
    assert second["tags"]["reprokit.compared_with"] == first["id"]
    assert first["params"] == {"rate": "0.1"}
    assert first["metrics"]["reprokit/fidelity"] == 1.0
    assert first["steps"] == [0, 1, 2, 3, 4]  # as the training logged them, and not twice
    assert {Path(name).suffix for name in first["files"]} == {".json", ".html", ".zst"}


def test_a_run_without_mlflow_gets_one(tmp_path: Path) -> None:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "file:./mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    reprokit = Reprokit(tmp_path)
    script = "import reprokit\nfor step in range(3):\n    reprokit.log(step=10 * step, loss=0.5 ** step)\n"
    reprokit.script("train.py", script)
    assert reprokit.run("record", "-o", "first", "--", str(PYTHON), "train.py", "--rate", "0.1").returncode == 0
    environment["PYTHONPATH"] = str(ROOT)
    command = [str(PYTHON), "-m", "reprokit", "export", "mlflow", "first", "--experiment-name", "mine"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("new run ")
    asked = subprocess.run([str(PYTHON), "-c", ASKING], cwd=tmp_path, env=environment, capture_output=True, text=True)
    (found,) = json.loads(asked.stdout)
    assert (found["steps"], found["metrics"]["loss"]) == ([0, 10, 20], 0.25)
    assert found["params"]["rate"] == "0.1"
    assert found["tags"]["reprokit.verdict"] == "not-compared"
    wrong = subprocess.run(
        [*command, "--run-id", "0" * 32], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (wrong.returncode, "tracker-failed" in wrong.stderr, len(wrong.stderr.splitlines())) == (2, True, 1)


def test_wandb_offline(reprokit: Reprokit) -> None:
    recorded_and_replayed(reprokit, WANDB)
    done = reprokit.run("verify", "first", "second")
    assert done.returncode == 0, done.stdout
    assert "metrics in files    identical     2 compared" in done.stdout
    runs = {json.loads(line)["run"] for name in ("first", "second") for line in tracker_lines(reprokit, name)}
    assert len(runs) == 2  # the replay writes over nothing
    shown = json.loads(reprokit.run("show", "first", "--json").stdout)
    assert [(one["name"], one["values"]) for one in shown["metrics_in_files"]] == [("loss", 5), ("nested.a", 5)]
    assert reprokit.run("record", "-o", "third", "--", str(PYTHON), "train.py").returncode == 0
    done = reprokit.run("verify", "first", "third")
    assert "loss in wandb/offline-run-TIME-ID differs first at step 0" in done.stdout


def tracker_lines(reprokit: Reprokit, name: str) -> list[str]:
    text = (reprokit.directory / name / "metrics.jsonl").read_text()
    return [line for line in text.splitlines() if '"k":"tracker"' in line]


def test_tensorboard(reprokit: Reprokit) -> None:
    recorded_and_replayed(reprokit, TENSORBOARD)
    done = reprokit.run("verify", "first", "second")
    assert done.returncode == 0, done.stdout
    assert "loss in logs: 5 values" in done.stdout


STAGE = """
stages:
  reproducible:
    cmd:
      - reprokit gate -o runs -- python train.py
      - reprokit export dvc runs/train/recording-1 runs/train/replay-1 --plots plots
    deps: [train.py]
    outs: [model.bin, {runs: {cache: false}}]
    metrics: [{reprokit-metrics.json: {cache: false}}]
    plots: [{plots: {cache: false, x: step, y: value}}]
"""
TRAINING = """
import os, random, reprokit
for step in range(5):
    reprokit.log(step=step, loss=random.random())
open("model.bin", "w").write(str(random.random()))
"""


def test_a_stage_of_dvc_gates(reprokit: Reprokit) -> None:
    home = reprokit.directory
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", "HOME": str(home)}

    def dvc(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(PYTHON.with_name("dvc")), *arguments]
        return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)

    reprokit.script("train.py", TRAINING)
    (home / "dvc.yaml").write_text(STAGE)
    assert dvc("init", "--no-scm").returncode == 0
    done = dvc("repro")
    assert done.returncode == 0, done.stderr
    shown = json.loads(dvc("metrics", "show", "--json").stdout)[""]["data"]["reprokit-metrics.json"]["data"]
    assert shown["reprokit"] == {"identical": 1, "different": 0, "fidelity": 1.0}
    assert "loss" in shown["last"]
    assert "didn't change" in dvc("repro").stdout
    assert dvc("plots", "show", "-o", "page").returncode == 0
    reprokit.script("train.py", TRAINING.replace("loss=random.random()", "loss=os.getpid()"))
    failed = dvc("repro")
    assert failed.returncode != 0
    assert "exited with 1" in failed.stderr
