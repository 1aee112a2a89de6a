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

pytestmark = pytest.mark.slow

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


def evaluated(directory: Path, kind: str, python: str) -> Evaluated:
    script = training_text("keras_evaluated.py", kind)

    def run(name: str) -> tuple[Training, Outcome]:
        training = Training(directory / name, python=python)
        training.directory.mkdir()
        outcome = (training.run if name == "recorded" else training.run_bare)(script)
        assert outcome.status == 0, outcome.errors
        return training, outcome

    with ThreadPoolExecutor(2) as pool:
        (bare, _), (training, outcome) = pool.map(run, ("bare", "recorded"))
    texts = [(one.directory / "scores.json").read_text() for one in (bare, training)]
    return Evaluated(kind, training.directory, outcome, *texts)


KINDS = [
    pytest.param("some", marks=pytest.mark.tensorflow),
    pytest.param("function", marks=[pytest.mark.tensorflow, pytest.mark.extended]),
    pytest.param("compiled", marks=[pytest.mark.tensorflow, pytest.mark.extended]),
    pytest.param("graph", marks=pytest.mark.tf114),
]


@pytest.fixture(scope="module", params=KINDS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    kind = request.param
    python = tf114_python() if kind == "graph" else sys.executable
    if python is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    return evaluated(tmp_path_factory.mktemp("evaluated"), kind, python)


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
