"""What experiment trackers are told of a run; the trackers themselves are asked in test_trackers.py."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from reprokit.core.errors import ExtraMissing, UsageError
from reprokit.evidence.export import dvc, mlflow
from reprokit.evidence.export.mlflow import Target, key_of, metrics, opened_runs, parameters, verdict
from reprokit.evidence.report.gather import gather
from reprokit.run_files.rundir import RunDirectory
from tests.support import Reprokit
from tests.verify.runs import Building, float32, recording, replayed
from tests.verify.test_logged import RUN_1, RUN_2, events, run_with, wandb

HOSTILE = "<b>../../x\x1b[31m"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Building, Building]:
    left = recording(tmp_path / "left")
    left.run.command = ["python", "train.py", "--rate", "0.1", "--epochs=3", "--fast", "--seed", "-1", "in.csv"]
    left.losses(1.0, 0.5, math.nan)
    left.losses(7.0, process="0/1")
    left.add("log", name=HOSTILE, step=4, epoch=None, value=float32(2.5))
    right = replayed(left, tmp_path / "right")
    right.run.command = left.run.command
    return left, right


def test_options_of_the_command_become_parameters(pair: tuple[Building, Building]) -> None:
    found = dict(parameters(gather([pair[0].write()])))
    assert found.pop("command").startswith("python train.py --rate 0.1")
    assert found.pop("git commit").startswith("not in a git")
    assert found == {"rate": "0.1", "epochs": "3", "fast": "true", "seed": "true"}


def test_metrics_have_their_steps_and_names_that_are_no_paths(pair: tuple[Building, Building]) -> None:
    found = list(metrics(RunDirectory(pair[0].write())))
    assert [one[:2] for one in found] == [
        ("loss", 0), ("loss", 1), ("loss", 2), ("loss of process 0/1", 0), ("_b_../_/x_x1b_31m", 4)
    ]  # fmt: skip
    assert [one[2] for one in found[:2]] == [1.0, 0.5]
    assert math.isnan(found[2][2])


@pytest.mark.parametrize(
    ("name", "key"), [("a/b", "a/b"), ("../a", "_/a"), ("/a", "_/a"), ("a//b", "a/_/b"), ("", "_"), ("é:%", "é__")]
)
def test_keys(name: str, key: str) -> None:
    assert key_of(name) == key


def test_the_verdict_in_tags(pair: tuple[Building, Building]) -> None:
    tags = dict(verdict(gather([building.write() for building in pair])))
    assert tags["verdict"] == "identical"
    assert (tags["run.id"], tags["second_run.id"], tags["second_run.kind"]) == ("id-left", "id-right", "replay")
    assert tags["fidelity"] == "100 % exact (9 exact)"
    assert "see below" not in tags["verdict.words"]
    assert all(len(value) <= 1000 and value.isprintable() for value in tags.values())


def test_the_run_that_the_training_opened_is_found(pair: tuple[Building, Building]) -> None:
    left = pair[0]
    for run in ("abc", "abc"):
        left.add("tracker", name="mlflow", run=run, place="file:./mlruns", group="0")
    left.add("tracker", name="wandb", run="other", place="", group="")
    assert opened_runs(RunDirectory(left.write())) == ["abc"]
    with pytest.raises(UsageError, match="opened 2 runs"):
        mlflow._only(["abc", "def"])


def test_without_mlflow_it_is_said_what_to_install(
    pair: tuple[Building, Building], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    path = pair[0].write()
    with pytest.raises(ExtraMissing, match=r"pip install mlflow-skinny"):
        mlflow.export(gather([path]), [path], [], Target())


def test_files_for_dvc_have_no_times(pair: tuple[Building, Building], tmp_path: Path, reprokit: Reprokit) -> None:
    for building in pair:
        building.write()
    done = reprokit.run("export", "dvc", "left", "right", "-o", "metrics.json", "--plots", "plots")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"metrics.json: identical", "plots/loss.csv"} <= set(done.stdout.splitlines())
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert content["reprokit"] == {"identical": 1, "different": 0, "fidelity": 1.0}
    assert content["last"]["loss"] == "not finite"
    assert all(name.replace("_", "").replace(".", "").isalnum() for name in content["last"])
    assert (tmp_path / "plots" / "loss.csv").read_text() == "step,value\n0,1.0\n1,0.5\n"
    assert {path.parent for path in tmp_path.rglob("*.csv")} == {tmp_path / "plots"}


def test_files_for_dvc_of_runs_that_differ_and_of_one_alone(pair: tuple[Building, Building]) -> None:
    right = pair[1]
    right.lines[0]["value"] = float32(1.25)
    paths = [building.write() for building in pair]
    different = dvc.metrics(gather(paths))["reprokit"]
    assert (different["identical"], different["different"] > 0) == (0, True)
    assert "identical" not in dvc.metrics(gather(paths[:1]))["reprokit"]


def test_a_place_that_cannot_be_written_to_is_one_line(pair: tuple[Building, Building], reprokit: Reprokit) -> None:
    pair[0].write()
    done = reprokit.run("export", "dvc", "left", "-o", "absent/metrics.json")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "absent/metrics.json" in done.stderr


def test_curves_of_trackers_files_stand_behind_the_recorded_ones(tmp_path: Path) -> None:
    left = run_with(tmp_path / "left", wandb(RUN_1, "1.5", "0.5", "NaN"), events(1, 3.0, 2.0))
    right = run_with(tmp_path / "right", wandb(RUN_2, "1.5", "0.5", "NaN"), events(2, 3.0, 2.0))
    left.losses(1.0, 0.5)
    right.losses(1.0, 0.5)
    facts = gather([left.write(), right.write()])
    assert [curve.name for curve in facts.curves] == [
        "loss", "loss in logs", "loss in wandb/offline-run-TIME-ID"
    ]  # fmt: skip
    assert facts.curves[2].not_finite == (1, 1)
    assert facts.curves[1].left == facts.curves[1].right
    (found,) = [one for one in facts.categories if one.name == "metrics in files"]
    assert (found.verdict, len(found.items)) == ("identical", 2)
