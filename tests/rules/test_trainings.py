"""Rules find what is wrong with trainings that are known to be sick, and nothing in healthy ones."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Reprokit, rest_slow

TRAININGS = Path(__file__).parent.parent / "trainings"
SICK = {  # and the rules of which one at least must say so
    "accumulated_by_two": {"LossNotDecreasing"},
    "class_imbalance": {"ClassImbalance"},
    "double_softmax": {"DoubleSoftmax"},
    "dying_relu": {"DyingReLU"},
    "evaluated_in_advance": {"EvaluationWithDropout"},
    "evaluated_with_dropout": {"EvaluationWithDropout"},
    "exploding_gradient": {"ExplodingTensor"},
    "finite_explosion": {"FiniteExplosion"},
    "forgotten_tower": {"UnchangedTensor"},
    "frozen_layers": {"UnchangedTensor"},
    "gradients_never_zeroed": {"GradientsNeverZeroed"},
    "left_in_eval_mode": {"TrainedInEvalMode"},
    "layer_without_gradients": {"UnchangedTensor"},
    "keras_class_imbalance": {"ClassImbalance"},
    "keras_dying_relu": {"DyingReLU"},
    "keras_overfitting": {"Overfit"},
    "keras_saturated_tanh": {"SaturatedActivation"},
    "keras_unnormalized_images": {"CheckInputImages"},
    "keras_vanishing_gradient": {"VanishingGradient"},
    "overfitting": {"Overfit"},
    "padding": {"NLPSequenceRatio"},
    "rate_too_large": {"LossNotDecreasing", "ExplodingTensor", "WeightUpdateRatio"},
    "rate_too_small": {"LossNotDecreasing", "WeightUpdateRatio", "UnchangedTensor"},
    "saturated_tanh": {"SaturatedActivation"},
    "unnormalized_images": {"CheckInputImages"},
    "unshuffled": {"ClassImbalance"},
    "vanishing_gradient": {"VanishingGradient"},
}


IN_TEST_ALL = {"dying_relu", "regression"}  # the others: make test-extended


def some(names: Iterable[str]) -> list[Any]:
    """The trainings that make test-all tries, and those that only make test-extended does."""
    marks = {True: pytest.mark.slow, False: pytest.mark.extended}
    return [pytest.param(name, marks=marks[name in IN_TEST_ALL]) for name in names]


def raised(reprokit: Reprokit, script: Path) -> dict[str, str]:
    """The alarms of all rules that hold for every training, by rule."""
    recorded = reprokit.run(
        *("record", "-q", "-o", "run", "--tensors", "all mode=train,eval", "--", sys.executable, str(script))
    )
    assert recorded.returncode == 0, recorded.stderr
    judged = reprokit.run("rules", "--json", "run")
    found = json.loads(judged.stdout)
    assert judged.returncode == bool(found["findings"])
    assert not [note for note in found["notes"] if "failed" in note]
    return {one["rule"]: f"{one['step']} {one['subject']}: {one['why']}" for one in found["findings"]}


@pytest.mark.torch
@pytest.mark.parametrize("name", some(SICK))
def test_a_sick_training_is_found(reprokit: Reprokit, name: str) -> None:
    found = raised(reprokit, TRAININGS / "sick" / f"{name}.py")
    assert SICK[name] & found.keys(), found


@pytest.mark.torch
@pytest.mark.parametrize("name", some(sorted(path.stem for path in (TRAININGS / "healthy").glob("*.py"))))
def test_a_healthy_training_raises_no_alarm(reprokit: Reprokit, name: str) -> None:
    assert raised(reprokit, TRAININGS / "healthy" / f"{name}.py") == {}


@pytest.mark.torch
@pytest.mark.parametrize(
    "how", [pytest.param("kept", marks=pytest.mark.slow), pytest.param("zeroed", marks=pytest.mark.extended)]
)
def test_gradients_of_shards_are_read_by_each_rank_alone(reprokit: Reprokit, how: str) -> None:
    words = ("--tensors", "conduct,weights", "--", sys.executable, str(TRAININGS / "kept_shards.py"), how)
    recorded = reprokit.run("record", "-q", "-o", "run", *words)
    assert recorded.returncode == 0, recorded.stderr
    found = json.loads(reprokit.run("rules", "--json", "run").stdout)["findings"]
    expected = {"GradientsNeverZeroed"} if how == "kept" else set()
    assert {one["rule"] for one in found} == expected, found
    assert all("4 of 4 gradients still held" in one["why"] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("kind", ["healthy", "sick"])
def test_boosters_overfit_where_the_validation_loss_rises_not_where_it_is_far_above(
    reprokit: Reprokit, library: str, kind: str
) -> None:
    """The training's loss is nearly nothing in both."""
    pytest.importorskip(library)
    script = str(TRAININGS / "boosted_overfit.py")
    options = ("-q", "-o", "run", "--tensors", "metrics mode=train,eval")
    recorded = reprokit.run("record", *options, "--", sys.executable, script, library, kind)
    assert recorded.returncode == 0, recorded.stderr
    found = json.loads(reprokit.run("rules", "--json", "run", "--rule", "Overfit").stdout)["findings"]
    assert [one["rule"] for one in found] == ["Overfit"] * (kind == "sick")
    assert all(re.fullmatch(r"in \d+ rounds it rose from .+, while train-.+ fell from .+", one["why"]) for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", rest_slow(["eager"], extended=["function", "fit"]))
@pytest.mark.parametrize("sickness", ["omitted", "frozen"])
def test_variables_that_tensorflow_s_optimizer_is_not_given_are_found_unless_they_are_frozen(
    reprokit: Reprokit, kind: str, sickness: str
) -> None:
    script = str(TRAININGS / "tensorflow_omitted.py")
    done = reprokit.run("record", "-q", "-o", "run", "--tensors", "all", "--", sys.executable, script, kind, sickness)
    assert done.returncode == 0, done.stderr
    alarms = json.loads(reprokit.run("rules", "--json", "run").stdout)["findings"]
    expected = {"UnchangedTensor"} if sickness == "omitted" else set()
    assert {alarm["rule"] for alarm in alarms} == expected, alarms
    assert all("/dense" in alarm["subject"] and alarm["subject"].endswith("kernel") for alarm in alarms)
