"""Keras 3 and TensorFlow 2: fit, evaluate, predict, loops of one's own, graphs with sessions."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.agent.training import Outcome, Training, digests, float_value, object_digest, tensor_digest
from tests.support import rest_slow, training_text
from tests.verify.runs import rows_digest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

FIT = training_text("keras_fit.py")

LOOP = training_text("keras_loops.py")


def arrays(training: Training, name: str) -> list[Any]:
    with numpy.load(training.directory / name) as file:
        return [file[f"arr_{number}"] for number in range(len(file.files))]


def model_digest(names: list[str], weights: list[Any]) -> str:
    return object_digest(dict(zip(names, map(tensor_digest, weights), strict=True)))


@pytest.fixture(scope="module", params=rest_slow(["tensorflow", "torch"]))
def fit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, Outcome]:
    """A training by Keras on each of the backends that are here."""
    training = Training(tmp_path_factory.mktemp(request.param))
    return training, training.run(FIT, KERAS_BACKEND=request.param)


def results(training: Training) -> Any:
    import json

    return json.loads((training.directory / "results.json").read_text())


def exact(series: dict[str, list[float]]) -> dict[str, list[Any]]:
    return {name: [float_value("float64", number) for number in numbers] for name, numbers in series.items()}


def test_keras_trains_as_before(fit: tuple[Training, Outcome]) -> None:
    _, outcome = fit
    assert (outcome.status, outcome.output) == (0, "refused\n")
    assert not outcome.of("warning")
    assert outcome.lines[-1]["k"] == "end"


def test_history_and_epochs_are_exact(fit: tuple[Training, Outcome]) -> None:
    training, outcome = fit
    first, second, *_ = results(training)
    assert [line["values"] for line in outcome.of("history")] == [exact(first), exact(second)]
    for number, line in enumerate(outcome.of("epoch", name="fit#0")):
        assert line["epoch"] == number
        assert line["values"] == {name: values[number] for name, values in exact(first).items()}
    assert [line["steps"] for line in outcome.of("epoch", name="fit#1")] == [3]


def test_evaluations_are_named_and_those_inside_fit_are_not_told_twice(fit: tuple[Training, Outcome]) -> None:
    training, outcome = fit
    plain, named = results(training)[2]
    values = [line["values"] for line in outcome.of("evaluate")]
    assert values[0] == {"loss": float_value("float64", plain[0]), "accuracy": float_value("float64", plain[1])}
    assert values[1] == {name: float_value("float64", number) for name, number in named.items()}
    assert len(values) == 2


def test_predictions_and_batches(fit: tuple[Training, Outcome]) -> None:
    training, outcome = fit
    (predicted,) = arrays(training, "predicted.npz")
    line = outcome.one("evaluation", name="predict")
    column = line["predictions"]
    assert (line["name"], column["digest"], column["shape"]) == ("predict", rows_digest(predicted), [48, 3])
    assert line["accuracy"] == [round(48 * results(training)[2][0][1]), 48]  # that of evaluate with the same inputs
    assert outcome.of("loss")[-1]["value"]["decimal"] == pytest.approx(results(training)[3][0])
    seeds = {line["call"]: line["argument"] for line in outcome.of("seed")}  # Keras hands it on to its backend
    assert seeds["keras.utils.set_random_seed"] == "4"


def test_weights_of_every_epoch_and_of_the_end(fit: tuple[Training, Outcome]) -> None:
    training, outcome = fit
    names = results(training)[4]
    for number in range(2):
        line = outcome.of("weights", at="epoch", epoch=number, object="model#0")[0]
        assert line["digest"] == model_digest(names, arrays(training, f"epoch{number}.npz"))
    end = outcome.one("weights", at="end", object="model#0")
    assert end["digest"] == model_digest(names, arrays(training, "end.npz"))
    assert set(digests(end)) == set(names)
    assert outcome.one("optimizer", object="optimizer#0")["steps"] == 10


def test_loops_that_apply_gradients_themselves(training: Training) -> None:
    outcome = training.run(LOOP)
    assert outcome.status == 0
    assert not outcome.of("warning")
    ends = {line["object"]: line for line in outcome.of("weights", at="end")}
    names = outcome.output.split()
    assert ends["model#0"]["digest"] == model_digest(names, arrays(training, "end.npz"))
    assert outcome.one("optimizer", object="optimizer#0")["steps"] == 5
    shrunk = tensor_digest(numpy.array([0.25, 0.5], numpy.float32))
    assert list(digests(ends["model#1"]).values()) == [shrunk]
    assert list(digests(ends["model#2"]).values()) == [tensor_digest(numpy.array([0.5, 1.0], numpy.float32))]
    assert outcome.one("seed")["call"] == "tensorflow.random.set_seed"
    assert "tensorflow" in [line["name"] for line in outcome.of("random_state")]


def test_a_failure_of_the_agent_is_never_the_trainings(training: Training) -> None:
    outcome = training.run(training_text("keras_watched.py", "failing"))
    assert (outcome.status, outcome.output) == (0, "done\n")
    assert len(outcome.of("warning")) == 3
    assert outcome.one("evaluation")["task"] == "regression"
    assert outcome.one("weights", at="end", object="model#0")
    assert outcome.lines[-1]["k"] == "end"


def test_signatures_stay(training: Training) -> None:
    script = training_text("keras_watched.py", "signatures")
    assert training.run(script).output == training.run_bare(script).output
