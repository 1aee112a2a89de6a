"""The trail of boosting: each round's trees have a digest, and the last round the whole model's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.frameworks.lightgbm import LightgbmRound
from reprokit.agent.frameworks.xgboost import XgboostRound
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from tests.support import Reprokit, rest_slow

pytestmark = pytest.mark.xgboost
TRAINING = Path(__file__).parents[1] / "trainings" / "boosted_kinds.py"
XGBOOST = ("plain", "dart", "linear", "multi", "forest", "custom", "stopped", "continued", "refreshed", "cv", "loops")
LIGHTGBM = ("plain", "dart", "goss", "multi", "forest", "custom", "stopped", "continued", "cv", "loops", "rolled back")
KINDS = [("xgboost", kind) for kind in XGBOOST] + [("lightgbm", kind) for kind in LIGHTGBM]
SLOW = [("xgboost", "stopped"), ("xgboost", "cv"), ("lightgbm", "plain"), ("lightgbm", "rolled back")]


def record(directory: Path, name: str, *arguments: str) -> trails.Series:
    command = [sys.executable, str(TRAINING), *arguments]
    done = Reprokit(directory).run("record", "-q", "-o", name, "--keyed", "--seed", "boosted", "--", *command)
    assert done.returncode == 0, done.stderr
    assert "trail" not in done.stderr
    (trail,) = trails.read(RunDirectory(directory / name))
    return trail.series[0]


def first_difference(directory: Path, *runs: str) -> tuple[int, str]:
    """The step in which a trail parts, and what verify says of it."""
    done = Reprokit(directory).run("verify", *runs, "--json")
    assert done.returncode == 1, done.stdout
    both = [next(iter(trails.read(RunDirectory(directory / run)))).series[0].steps() for run in runs]
    parts = [left.number for left, right in zip(*both, strict=False) if left.parameters != right.parameters]
    return (parts or [-1])[0], json.dumps(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "kind"),
    rest_slow([KINDS[0], *SLOW], extended=[kind for kind in KINDS[1:] if kind not in SLOW]),
)
def test_each_round_has_a_digest_and_another_tree_is_found_at_its_round(
    tmp_path: Path, library: str, kind: str
) -> None:
    steps = list(record(tmp_path, "run", library, kind, "rate", "-1").steps())
    assert all(step.parameters is not None for step in steps)
    assert len({step.parameters for step in steps}) == len(steps) or kind in ("rolled back", "refreshed", "linear")
    last = {"cv": 3, "loops": 3, "continued": 2, "refreshed": 2, "rolled back": 3}.get(kind, 1)
    with_model = [step.number for step in steps if step.buffers is not None]
    assert len(with_model) == last
    assert with_model[-1] == len(steps) - 1
    record(tmp_path, "again", library, kind, "rate", "-1")
    assert Reprokit(tmp_path).run("verify", "run", "again").returncode == 0
    changed = 1 if kind == "stopped" else 7
    record(tmp_path, "other", library, kind, "rate", str(changed))
    step, said = first_difference(tmp_path, "run", "other")
    folds = 3 if kind == "cv" else 1
    assert changed * folds <= step < (changed + 1) * folds
    assert f"at step {step}" in said or "the parameters are the first to differ" in said
    fact = {"xgboost": "gblinear-shotgun", "lightgbm": "lightgbm-deterministic"}[library]
    assert "known to vary by itself: " in said
    assert f"(reprokit knowledge xgboost.{fact})" in said


@pytest.mark.slow
def test_a_tree_changed_past_the_library_after_its_round_is_found_in_the_whole_model(tmp_path: Path) -> None:
    record(tmp_path, "run", "lightgbm", "plain", "earlier", "-1")
    record(tmp_path, "other", "lightgbm", "plain", "earlier", "9")
    step, said = first_difference(tmp_path, "run", "other")
    assert step == -1
    assert "trees of the whole model" in said
    assert "what changed trees after their rounds" in said


@pytest.mark.slow
def test_a_longer_training_differs_by_its_length_alone(tmp_path: Path) -> None:
    """The last round of the shorter one has a digest of the whole model, which the longer one lacks there."""
    command = "import xgboost, numpy, sys; x = numpy.eye(8); data = xgboost.DMatrix(x, x[0] + x[1])\n"
    command += "xgboost.train({'nthread': 1, 'min_child_weight': 0}, data, int(open('rounds').read())); print(0)"
    for name, rounds in (("run", "4"), ("longer", "6")):
        (tmp_path / "rounds").write_text(rounds)
        done = Reprokit(tmp_path).run("record", "-q", "-o", name, "--", sys.executable, "-c", command)
        assert done.returncode == 0
    done = Reprokit(tmp_path).run("verify", "run", "longer")
    assert done.returncode == 1
    assert "whole model" not in done.stdout
    assert "4 steps" in done.stdout


def of_xgboost(settings: dict[str, Any], rounds: int) -> Any:
    import numpy as np
    import xgboost

    x = np.random.default_rng(0).normal(size=(200, 4))
    data = xgboost.DMatrix(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0))
    return xgboost.train({"nthread": 1, **settings}, data, rounds)


def of_lightgbm(settings: dict[str, Any], rounds: int) -> Any:
    import lightgbm
    import numpy as np

    x = np.random.default_rng(0).normal(size=(200, 4))
    data = lightgbm.Dataset(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0))
    return lightgbm.train({"num_threads": 1, "verbose": -1, **settings}, data, rounds, keep_training_booster=True)


@pytest.mark.parametrize(
    ("train", "settings", "rounds_of"),
    [
        (of_xgboost, {}, XgboostRound),
        (of_xgboost, {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2}, XgboostRound),
        (of_lightgbm, {}, LightgbmRound),
        (of_lightgbm, {"objective": "multiclass", "num_class": 3}, LightgbmRound),
    ],
    ids=["xgboost", "xgboost, several trees a round", "lightgbm", "lightgbm, several trees a round"],
)
def test_a_round_has_the_same_digest_alone_and_among_others(
    train: Any, settings: dict[str, Any], rounds_of: Any
) -> None:
    booster = train(settings, 70)
    whole = rounds_of.digests(booster).rounds
    assert len({digest for digest, _ in whole}) == len(whole) == 70
    for first, last in ((0, 1), (3, 70), (66, 67), (65, 70), (69, 70)):  # XGBoost makes slices from the 65th on
        part = rounds_of.digests(booster, first, last)
        assert part.rounds[: last - first] == whole[first:last]
