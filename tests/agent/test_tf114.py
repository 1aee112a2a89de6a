"""TensorFlow 1.14 with its Keras on CPython 3.7, in an environment that has no reprokit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from tests.agent.training import Outcome, Training, digests, object_digest, tensor_digest
from tests.interpreters import tf114_python
from tests.verify.runs import rows_digest

pytestmark = [pytest.mark.tf114, pytest.mark.slow]

SCRIPT = """
import json, numpy as np, tensorflow as tf, reprokit
x, y = np.random.rand(48, 8).astype("float32"), np.random.randint(0, 3, 48)

def batches():
    while True:
        yield x[:16], y[:16]

def main():
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3),
                                 layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_split=0.25)
    model.fit(x, y, 48, max_queue_size=5, epochs=1, verbose=0)
    model.fit_generator(batches(), steps_per_epoch=3, epochs=1, verbose=0, validation_data=(x, y))
    evaluated = model.evaluate(x, y, verbose=0)
    predicted = model.predict(x)
    reprokit.log(accuracy=evaluated[1])
    np.savez("end.npz", predicted, *model.get_weights())
    names = [weight.name for weight in model.weights]
    with open("results.json", "w") as file:
        json.dump([{name: [float(v) for v in values] for name, values in history.history.items()},
                   [float(value) for value in evaluated], names], file)

main()
tf.compat.v1.set_random_seed(3)
with tf.Graph().as_default():
    weight = tf.get_variable("weight", initializer=[1.0, 2.0])
    train = tf.train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(weight * weight))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
"""


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
