"""The patches in the training's process: applied when their module comes, told, and taken back."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.patches import PLACES, fits
from reprokit.patches import CATALOGUE, find
from tests.agent.training import Training
from tests.interpreters import tf114_python
from tests.support import training_text


def entries(*texts: str) -> list[dict[str, str]]:
    """Patches as plan.json has them."""
    found = []
    for text in texts:
        name, _, value = text.partition("=")
        patch = find(name)
        found.append({"id": name, "value": value, "framework": patch.framework, "versions": patch.versions})
    return found


def patched(training: Training, *texts: str) -> Training:
    return replace(training, patches=entries(*texts))


def states(lines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What became of each patch."""
    return {line["id"]: line["state"] for line in lines if line["k"] == "patch" and line["state"] != "undone"}


def test_each_patch_of_the_catalogue_that_the_agent_applies_has_its_function() -> None:
    assert {patch.id for patch in CATALOGUE if patch.agent} == set(PLACES)
    for places in PLACES.values():
        for place in places.values():
            file, _, name = place.partition(".")
            assert callable(getattr(importlib.import_module(f"reprokit.agent.patches.{file}"), name)), place


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("2.21.0", ">=2.8", True),
        ("2.7.4", ">=2.8", False),
        ("2.8.0rc1", ">=2.8", True),
        ("2.13.0+cpu", ">=1.11,<3", True),
        ("1.14.0", ">=1.14,<2.1", True),
        ("2.1", ">=1.14,<2.1", False),
        ("2.10.1", "!=2.10.1", False),
        ("1.9", "==1.9.0", True),
        ("anything", "", True),
        ("", ">0", False),
    ],
)
def test_versions(version: str, specifier: str, expected: bool) -> None:
    assert fits(version, specifier) is expected


POOL = training_text("ordered_pool.py")


def found(training: Training) -> Any:
    return json.loads((training.directory / "found.json").read_text())


def test_results_of_a_pool_come_in_order_until_the_patch_is_taken_back(any_training: Training) -> None:
    training = patched(any_training, "imap-ordered")
    outcome = training.run(POOL)
    assert outcome.status == 0, outcome.errors
    assert found(training) == [[0, 1, 2], [2, 1, 0]]
    assert [line["state"] for line in outcome.of("patch")] == ["applied", "undone"]
    assert outcome.of("warning") == []


def test_a_run_without_patches_loads_none(training: Training) -> None:
    outcome = training.run("import sys; print([name for name in sys.modules if 'patches' in name])")
    assert outcome.output == "[]\n"


def test_a_patch_for_another_version_is_left_out_and_said(training: Training) -> None:
    training.write("tensorflow/__init__.py", "__version__ = '2.4.1'\n")
    outcome = patched(training, "tf-deterministic", "tf-cudnn").run("import tensorflow; print('went on')")
    assert outcome.output == "went on\n"
    assert states(outcome.lines) == {"tf-deterministic": "not-applied", "tf-cudnn": "applied"}
    assert outcome.one("patch", id="tf-deterministic")["why"] == "it is for tensorflow >=2.8, this is 2.4.1"


def test_a_patch_that_fails_is_refused_and_the_training_goes_on(training: Training) -> None:
    training.write("xgboost.py", "__version__ = '3.0'\n")
    outcome = patched(training, "xgboost-linear").run("import xgboost; print('went on')")
    assert (outcome.status, outcome.output) == (0, "went on\n")
    assert states(outcome.lines) == {"xgboost-linear": "refused"}
    assert "AttributeError" in outcome.one("patch")["why"]


def test_tfdeterminism_that_holds_no_code_is_said(training: Training) -> None:
    training.write("tensorflow/__init__.py", "from .python import ops\nfrom . import nn\n__version__ = '1.15.0'\n")
    training.write("tensorflow/nn.py", "def bias_add(): pass\n")
    training.write("tensorflow/python/__init__.py", "")
    training.write("tensorflow/python/ops/__init__.py", "from . import nn, nn_ops\n")
    for name in ("nn", "nn_ops"):
        training.write(f"tensorflow/python/ops/{name}.py", "def bias_add(): pass\n")
    outcome = patched(training, "tf1-determinism").run("import tensorflow")
    assert "no tfdeterminism" in outcome.one("patch", state="refused")["why"]
    training.write("tfdeterminism.py", "print('deprecated')\n")
    outcome = patched(training, "tf1-determinism").run("import tensorflow; print('went on')")
    assert outcome.output == "went on\n"  # and not what tfdeterminism prints
    why = outcome.of("patch", state="refused")[-1]["why"]
    assert "no patch()" in why
    assert "tensorflow-determinism==0.3.0" in why


LINEAR = training_text("xgboost_updaters.py")


@pytest.mark.slow
@pytest.mark.xgboost
def test_gblinear_is_updated_in_order(training: Training) -> None:
    training = patched(training, "xgboost-linear")
    outcome = training.run(LINEAR, "xgboost-linear")
    assert outcome.status == 0, outcome.errors
    assert found(training) == [[False, True]] * 3 + [[True, False], [False]]


TENSORFLOW = training_text("tensorflow_patched.py")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_tensorflow_2(training: Training) -> None:
    names = ["tf-deterministic", "tf-data", "tf-threads"]
    training = patched(training, *names, "tf-segment-sum")
    outcome = training.run(TENSORFLOW, *names)
    assert outcome.status == 0, outcome.errors
    kinds, ordered, threads, session_threads, is_kept, drawn, deterministic, undone = found(training)
    assert kinds == ["_MapDataset", "_ParallelMapDataset", "_ParallelInterleaveDataset", "_ParallelMapDataset"]
    assert ordered == [True, [0, 2, 4, 6, 8, 10, 12, 14]]
    assert (threads, session_threads, is_kept, drawn) == ([1, 1], 1, True, 2)
    assert (deterministic, undone) == ([True, False], [True] * 3)
    assert states(outcome.lines) == {**dict.fromkeys(names, "applied"), "tf-segment-sum": "not-applied"}


OLD = training_text("tensorflow1_patched.py")


@pytest.mark.tf114
@pytest.mark.slow
def test_tensorflow_1_14(tmp_path: Path) -> None:
    python = tf114_python()
    if python is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    names = ["tf1-determinism", "tf-segment-sum", "tf-data", "tf-threads"]
    training = patched(Training(tmp_path, python=python), *names, "tf-deterministic")
    outcome = training.run(OLD, *names)
    assert outcome.status == 0, outcome.errors
    kinds, is_ordered, bias_add, cudnn, threads, results, exact, bias_add_after, cudnn_after = found(training)
    assert (kinds, is_ordered, threads) == (["MapDataset", "ParallelMapDataset"], True, 1)
    assert results == [exact, exact, [3]]
    assert (bias_add, cudnn) == ("tfdeterminism.patch", "1")
    assert (bias_add_after, cudnn_after) == ("tensorflow.python.ops.nn_ops", None)
    assert states(outcome.lines) == {**dict.fromkeys(names, "applied"), "tf-deterministic": "not-applied"}
    assert "has been patched" in outcome.one("patch", id="tf1-determinism", state="applied")["why"]
    assert "has been patched" not in outcome.errors
