"""TensorFlow 1.14 with its Keras on CPython 3.7, in an environment that has no reprokit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from tests.agent.training import Outcome, Training, digests, object_digest, tensor_digest
from tests.interpreters import tf114_python
from tests.support import training_text
from tests.verify.runs import rows_digest

pytestmark = [pytest.mark.tf114, pytest.mark.slow]

SCRIPT = training_text("tensorflow1_keras.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    python = tf114_python()
    if python is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    training = Training(tmp_path_factory.mktemp("tf114"), python=python)
    return training.directory, training.run(SCRIPT)


def test_it_trains_and_says_what_it_ran_on(trained: tuple[Path, Outcome]) -> None:
    _, outcome = trained
    assert outcome.status == 0
    assert not outcome.of("warning")
    versions = {line["name"]: line["version"] for line in outcome.of("framework")}
    assert versions["tensorflow"] == "1.14.0"
    assert outcome.one("agent")["python"].startswith("3.7.")
    assert outcome.one("seed")["call"] == "tensorflow.set_random_seed"
    assert outcome.one("log", name="accuracy")["value"]["dtype"] == "float32"


def test_keras_results_are_exact(trained: tuple[Path, Outcome]) -> None:
    directory, outcome = trained
    history, evaluated, _ = json.loads((directory / "results.json").read_text())
    lines = outcome.of("history")
    assert [line["name"] for line in lines] == ["fit#0", "fit#1", "fit#2"]
    told = {name: [value["decimal"] for value in values] for name, values in lines[0]["values"].items()}
    assert told == {name: pytest.approx(values) for name, values in history.items()}
    assert {value["dtype"] for values in lines[0]["values"].values() for value in values} == {"float32", "float64"}
    assert [line["epoch"] for line in outcome.of("epoch")] == [0, 1, 0, 0]
    values = outcome.one("evaluate")["values"]
    assert [values[name]["decimal"] for name in ("loss", "acc")] == pytest.approx(evaluated)


def test_weights_are_those_of_the_session_that_is_gone(trained: tuple[Path, Outcome]) -> None:
    directory, outcome = trained
    with numpy.load(directory / "end.npz") as file:
        predicted, *weights = [file[f"arr_{number}"] for number in range(len(file.files))]
    names = json.loads((directory / "results.json").read_text())[2]
    assert outcome.one("evaluation", name="predict")["predictions"]["digest"] == rows_digest(predicted)
    expected = dict(zip(names, map(tensor_digest, weights), strict=True))
    end = outcome.one("weights", at="end", object="model#0")
    assert digests(end) == expected
    assert end["digest"] == object_digest(expected)
    epochs = outcome.of("weights", at="epoch", object="model#0")
    assert [line["epoch"] for line in epochs] == [0, 1, 0, 0]
    assert epochs[-1]["digest"] == end["digest"]
    assert outcome.one("optimizer", object="optimizer#0")["steps"] == 10


def test_a_session_is_read_before_it_closes(trained: tuple[Path, Outcome]) -> None:
    _, outcome = trained
    end = outcome.one("weights", at="end", object="model#1")
    assert digests(end) == {"weight:0": tensor_digest(numpy.array([0.5, 1.0], numpy.float32))}
