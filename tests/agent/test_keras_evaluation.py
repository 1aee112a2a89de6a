"""What Keras' evaluate predicts is collected, and neither its scores nor any random number change."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.agent.training import Line, Outcome, Training
from tests.interpreters import tf114_python
from tests.support import training_text
from tests.verify.runs import rows_digest

COMMON = """
import json, numpy as np, tensorflow as tf
try:
    import keras
except ImportError:
    from tensorflow import keras
layers, random = keras.layers, np.random.RandomState(0)
np.random.seed(1), tf.compat.v1.set_random_seed(3) if keras.__version__ < "3" else keras.utils.set_random_seed(3)
x = random.rand(100, 12).astype("float32")
labels, halves = random.randint(0, 5, 100), random.randint(0, 2, (100, 1)).astype("float32")
values, weights = random.rand(100, 5).astype("float32"), random.rand(100).astype("float32")
scores, sparse = {}, "sparse_categorical_crossentropy"

def note(name, found):
    scores[name] = [float(value).hex() for value in (found if isinstance(found, list) else [found])]

def mlp(*tail):
    head = [layers.Dense(8, activation="relu", input_shape=(12,)), layers.Dropout(0.5)]
    return keras.models.Sequential(head + list(tail))

def evaluate(name, model, loss, *data, metrics=(), how={}, **options):
    model.compile("sgd", loss, metrics=list(metrics), **how)
    note(name, model.evaluate(*data, verbose=0, **options))
    return model

def softmax():
    return layers.Dense(5, activation="softmax")

def two_heads(**names):
    inputs = layers.Input((12,))
    return keras.Model(inputs, [softmax()(inputs), layers.Dense(1)(inputs)])

def batches():
    while True:
        for start in range(0, 100, 25):
            yield x[start:start + 25], labels[start:start + 25]

def common(how):
    evaluate("softmax", mlp(softmax()), sparse, x, labels, metrics=["accuracy"], how=how)
    evaluate("one hot", mlp(softmax()), "categorical_crossentropy", x, np.eye(5, dtype="f4")[labels], how=how)
    evaluate("sigmoid", mlp(layers.Dense(1, activation="sigmoid")), "binary_crossentropy", x, halves, how=how)
    evaluate("weighted", mlp(layers.Dense(5)), "mse", x, values, metrics=["mae"], sample_weight=weights, how=how)
    evaluate("two heads", two_heads(), [sparse, "mse"], x, [labels, halves], how=how)
    evaluate("generator", mlp(softmax()), sparse, batches(), steps=4, how=how)
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(25)
    evaluate("dataset", mlp(softmax()), sparse, dataset, steps=4, how=how)

def fitted(how):
    model = mlp(softmax())
    model.compile("sgd", sparse, metrics=["accuracy"], **how)
    found = model.fit(x, labels, epochs=2, validation_data=(x[:40], labels[:40]), verbose=0).history
    for name in found:
        note("fit " + name, [float(value) for value in found[name]])
    note("after", model.evaluate(x, labels, verbose=0))
    predicted = model.predict(x, verbose=0)
    np.save("predicted.npy", predicted)
    scores["predicted"] = predicted.tobytes().hex()
    note("on batch", model.test_on_batch(x, labels))
"""
MODERN = """
class Custom(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(5)

    def call(self, inputs):
        return self.dense(inputs)

    def test_step(self, data):
        inputs, truth = data
        predicted = self(inputs, training=False)
        self.compute_loss(y=truth, y_pred=predicted)
        return self.compute_metrics(inputs, truth, predicted, None)

class Unseen(Custom):
    @tf.function
    def test_step(self, data):
        return super().test_step(data)

logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def modern(how):
    evaluate("custom", Custom(), logits, x, labels, metrics=["accuracy"], how=how)
    evaluate("unseen", Unseen(), logits, x, labels, metrics=["accuracy"], how=how)

def stateful(how):
    recurrent = keras.Sequential([layers.Input(batch_shape=(10, 4, 3)), layers.GRU(3, stateful=True), softmax()])
    evaluate("stateful", recurrent, sparse, x.reshape(100, 4, 3), labels, batch_size=10, how=how)

how = {"jit_compile": False}
common(how), modern(how), stateful(how), fitted(how)
evaluate("eager", mlp(softmax()), sparse, x, labels, how={"run_eagerly": True})
evaluate("several steps", mlp(softmax()), sparse, x, labels, how={"jit_compile": False, "steps_per_execution": 3})
"""
COMPILED = """
how = {"jit_compile": True}
evaluate("softmax", mlp(softmax()), sparse, x, labels, metrics=["accuracy"], how=how)
evaluate("two heads", two_heads(), [sparse, "mse"], x, [labels, halves], how=how)
dataset = tf.data.Dataset.from_tensor_slices((x, values, weights)).batch(25)
evaluate("weighted", mlp(layers.Dense(5)), "mse", dataset, metrics=["mae"], how=how)
stateful(how), fitted(how)
"""
SOME = COMPILED.replace("True", "False").replace("stateful(how), ", "")
GRAPHS = "\ncommon({}), fitted({})\n"
END = """
json.dump([scores, np.random.rand(), random.rand()], open("scores.json", "w"))
"""

# By kind, the names of the lines that it must have, in their order.
HEADS = ["evaluate/0", "evaluate/1"]
COMMON_LINES = ["evaluate"] * 4 + HEADS + ["evaluate"] * 2
FITTED_LINES = ["validation", "validation", "evaluate", "predict"]
EXPECTED = {
    "function": COMMON_LINES + ["evaluate"] * 2 + FITTED_LINES + ["evaluate"],
    "compiled": ["evaluate", *HEADS, "evaluate", "evaluate", "predict"],
    "graph": COMMON_LINES + FITTED_LINES,
    "some": ["evaluate", *HEADS, "evaluate", *FITTED_LINES],
}


@dataclass(frozen=True)
class Evaluated:
    """A script that was run bare and under the agent."""

    kind: str
    directory: Path
    outcome: Outcome
    bare: str
    recorded: str

    @property
    def lines(self) -> list[Line]:
        return self.outcome.of("evaluation")

    def rows(self, line: Line, side: str) -> Any:
        column = line[side]
        rows = numpy.load(self.directory / "run" / "evaluation" / column["file"])
        found = rows[column["row"] : column["row"] + column["shape"][0]]
        assert rows_digest(found) == column["digest"]
        return found


def evaluated(directory: Path, kind: str, script: str, python: str) -> Evaluated:
    def run(name: str) -> tuple[Training, Outcome]:
        training = Training(directory / name, python=python)
        training.directory.mkdir()
        outcome = (training.run if name == "recorded" else training.run_bare)(COMMON + script + END)
        assert outcome.status == 0, outcome.errors
        return training, outcome

    with ThreadPoolExecutor(2) as pool:
        (bare, _), (training, outcome) = pool.map(run, ("bare", "recorded"))
    texts = [(one.directory / "scores.json").read_text() for one in (bare, training)]
    return Evaluated(kind, training.directory, outcome, *texts)


KINDS = [
    pytest.param(("some", SOME), id="some", marks=pytest.mark.tensorflow),
    pytest.param(("function", MODERN), id="functions", marks=[pytest.mark.tensorflow, pytest.mark.extended]),
    pytest.param(
        ("compiled", MODERN.partition("how = {")[0] + COMPILED),
        id="xla",
        marks=[pytest.mark.tensorflow, pytest.mark.extended],
    ),
    pytest.param(("graph", GRAPHS), id="graphs", marks=pytest.mark.tf114),
]


@pytest.fixture(scope="module", params=KINDS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    kind, script = request.param
    python = tf114_python() if kind == "graph" else sys.executable
    if python is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    return evaluated(tmp_path_factory.mktemp("evaluated"), kind, script, python)


def test_scores_and_random_numbers_are_those_of_a_bare_run(found: Evaluated) -> None:
    assert json.loads(found.recorded) == json.loads(found.bare)
    assert not found.outcome.of("warning")


def test_every_kind_of_evaluation_is_collected_or_left_alone(found: Evaluated) -> None:
    assert [line["name"] for line in found.lines] == EXPECTED[found.kind]


def test_what_evaluate_predicted_is_what_predict_says(found: Evaluated) -> None:
    predict = next(number for number, line in enumerate(found.lines) if line["name"] == "predict")
    expected = numpy.load(found.directory / "predicted.npy")
    assert numpy.array_equal(found.rows(found.lines[predict], "predictions"), expected)
    rows = found.rows(found.lines[predict - 1], "predictions")
    assert numpy.array_equal(rows, expected)


def test_accuracy_is_the_one_that_keras_computed(found: Evaluated) -> None:
    scores = json.loads(found.recorded)[0]
    line = next(line for line in found.lines if line["name"] == "evaluate")
    right, total = line["accuracy"]
    assert total == 100
    assert right / total == pytest.approx(float.fromhex(scores["softmax"][1]))
    predicted, truth = found.rows(line, "predictions").argmax(1), found.rows(line, "truth").reshape(-1)
    expected = {
        label: [int((predicted[truth == label] == label).sum()), int((truth == label).sum())] for label in set(truth)
    }
    assert {float(label): [one, all_] for label, one, all_ in line["classes"]} == expected


def test_errors_of_a_regression_are_those_of_its_rows(found: Evaluated) -> None:
    line = found.lines[3]
    pred, truth = found.rows(line, "predictions"), found.rows(line, "truth")
    assert pred.shape == truth.shape == (100, 5)
    assert line["error"]["decimal"] == pytest.approx(numpy.abs(pred.astype("f8") - truth).mean())


def test_validation_is_collected_once_an_epoch(found: Evaluated) -> None:
    lines = [line for line in found.lines if line["name"] == "validation"]
    scores = json.loads(found.recorded)[0]
    name = "fit val_accuracy" if "fit val_accuracy" in scores else "fit val_acc"
    assert [line["accuracy"][1] for line in lines] == [40] * len(lines)
    for line, score in zip(lines, scores[name], strict=False):
        assert line["accuracy"][0] / 40 == pytest.approx(float.fromhex(score))


BOUNDED = training_text("keras_bounded.py")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_pieces_are_put_together_and_validation_has_a_share(training: Training) -> None:
    outcome = training.run(BOUNDED)
    assert outcome.status == 0, outcome.errors
    lines = outcome.of("evaluation")
    names = [line["name"] for line in lines]
    assert names == ["validation"] * 3 + ["evaluate", "predict", "evaluate"]  # none of what was broken off
    assert ["file" in line["predictions"] for line in lines] == [True, False, False, True, True, True]
    assert all(line["accuracy"][1] == 100 for line in lines[:4])
    assert "digested and not kept any more" in outcome.of("warning")[0]["text"]
    with numpy.load(training.directory / "end.npz") as file:
        accuracy, predicted = file["arr_0"], file["arr_1"]
    line = lines[3]
    assert line["accuracy"][0] / 100 == pytest.approx(float(accuracy))
    assert line["calls"] > 1
    column = line["predictions"]
    rows = numpy.load(training.run_directory / "evaluation" / column["file"])[column["row"] : column["row"] + 100]
    assert rows_digest(rows) == column["digest"]
    assert numpy.allclose(rows, predicted)
    assert lines[-1]["predictions"]["shape"] == [30, 2]
