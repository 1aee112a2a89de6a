"""Rounds of XGBoost and LightGBM: saved while they are made, asked for afterwards, proved, and judged by rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reprokit as package
from tests.questions.test_tensors import KEYED, Saved, ask, both, record
from tests.support import Reprokit

LIBRARIES = [
    pytest.param("xgboost", marks=pytest.mark.slow),
    pytest.param("lightgbm", marks=pytest.mark.extended),
]
SHAP = "full_shap,average_shap 0-5:5"


@pytest.mark.xgboost
@pytest.mark.parametrize("library", LIBRARIES)
def test_rounds_are_saved_as_they_are_asked_for(tmp_path: Path, library: str) -> None:
    saved, asked = both(tmp_path, f"boosted_rounds.py {library}", "--tensors", SHAP)
    ask(tmp_path, "asked", "full_shap", "average_shap", "--steps", "0-5:5")
    asked = Saved(tmp_path / "asked")
    assert asked.contents() == saved.contents()
    trial = package.trial(tmp_path / "saved")
    assert trial.steps() == [0, 1, 2, 3, 4, 5]
    assert {name: set(found.tensor_names) for name, found in trial.collections().items()}["labels"] == {
        "labels",
        "labels/valid",
    }
    _are_consistent(trial, library)
    assert not _differences(tmp_path)


def _are_consistent(trial: Any, library: str) -> None:
    """Labels, predictions, loss, SHAP and trees are those of one training."""
    metric, count = {"xgboost": ("logloss", "weight"), "lightgbm": ("binary_logloss", "split")}[library]
    for name, mode in (("train", "train"), ("valid", "eval")):
        end = "" if mode == "train" else "/valid"
        labels, predicted = (trial.tensor(f"{one}{end}").value(5, mode) for one in ("labels", "predictions"))
        loss = -np.log(np.where(labels == 1, predicted, 1 - predicted)).mean()
        assert trial.tensor(f"{name}-{metric}").value(5, mode) == pytest.approx(loss, rel=1e-5)
    margin = np.log(trial.tensor("predictions").value(5) / (1 - trial.tensor("predictions").value(5)))
    full = trial.tensor("full_shap").value(5)
    assert np.allclose(full.sum(axis=1), margin, atol=1e-4)
    assert np.allclose(full.mean(axis=0), trial.tensor("average_shap").value(5), atol=1e-6)
    splits = sum((trial.tensor("trees/left").value(step) >= 0).sum() for step in range(6))
    assert trial.tensor(f"feature_importance/{count}").value(5).sum() == splits
    assert trial.tensor("trees/depth").value(0)[0] > 1
    assert trial.tensor("hyperparameters/learning_rate").value(0) == pytest.approx(0.3)


def _differences(directory: Path) -> bool:
    """Whether saving changed the training: both recordings have one seed."""
    return Reprokit(directory).run("verify", "saved", "asked").returncode != 0


@pytest.mark.xgboost
@pytest.mark.extended
def test_rules_judge_trees_and_a_trail_names_the_round_that_differs(tmp_path: Path) -> None:
    record(tmp_path, "run", "boosted_rounds.py xgboost", "--tensors", "all")
    rules = ("--rule", "tree-depth=depth=1", "--rule", "feature-importance-overweight=threshold=0.5")
    done = Reprokit(tmp_path).run("rules", "run", *rules, "--json")
    found = {one["rule"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert "above 1" in found["TreeDepth"]["why"]
    assert found["FeatureImportanceOverweight"]["subject"] == "feature_importance/weight"
    assert Reprokit(tmp_path).run("rules", "run", "--rule", "TreeDepth=depth=20").returncode == 0
    done = Reprokit(tmp_path).run("report", "run", "--format", "json")
    (matrix,) = json.loads(done.stdout)["confusion"]
    assert (matrix["title"], matrix["classes"]) == ("labels, the batches of 6 training steps", [0, 1])
    labels = package.trial(tmp_path / "run").tensor("labels").value(0)
    assert [sum(row) for row in matrix["counts"]] == [6 * (labels == 0).sum(), 6 * (labels == 1).sum()]
    other = ("record", "-q", "-o", "other", *KEYED[:-1], "another", "--")
    command = json.loads((tmp_path / "run" / "run.json").read_text())["command"]
    assert Reprokit(tmp_path).run(*other, *command).returncode == 0
    verified = Reprokit(tmp_path).run("verify", "run", "other", "--json")
    assert "the parameters are the first to differ" in verified.stdout
    assert "the cause is in the booster's data, settings or seed, or in how it computes" in verified.stdout
    assert verified.returncode == 1
