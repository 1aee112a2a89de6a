"""TensorFlow 2 and Keras 3: captured steps done again, made smaller, and explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.capture.tensorflow_steps import Steps, captured
from tests.support import training_text

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

STEPS = training_text("tensorflow_redone.py")
ALL = "fit, function, eager, by_hand, by_number, summed"


def script(here: str, epochs: int = 1) -> str:
    return STEPS.replace("TRAININGS = []", f"TRAININGS = [{here}]").replace("EPOCHS = 1", f"EPOCHS = {epochs}")


# Each function is a loss of one variable, whose value is the second.
CAUSES = training_text("tensorflow_causes.py")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    found = Steps(tmp_path_factory.mktemp("steps"))
    done = found.capture(script(ALL) + CAUSES, "skip", max_snapshots=6)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in found.snapshots] == [
        "step-00000002",
        *(f"step-00000002-{n}" for n in (2, 3, 4, 5, 6)),
    ]
    for number in range(6):
        assert found.header(number)["gradients"]
    (found.directory / "causes.json").write_text(done.stdout)
    return found


@pytest.fixture(scope="module")
def causes(steps: Steps) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((steps.directory / "causes.json").read_text())
    return found


def line_of(text: str) -> int:
    """The line of the script that holds this text."""
    whole = script(ALL) + CAUSES
    return max(number for number, line in enumerate(whole.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("name", "phase", "operation", "line", "words"),
    [
        (
            "norm_at_zero",
            "backward",
            "SqrtGrad",
            "tf.norm(x, axis=1)",
            "sqrt of 0 has an infinite gradient; 1 of 2 inputs",
        ),
        (
            "log_of_zero",
            "forward",
            "Log",
            "return tf.reduce_mean(tf.math.log(x))",
            "log of 0 is infinite; 2 of 3 inputs are 0",
        ),
        ("masked_mean", "forward", "RealDiv", "totals / tf", "0/0 is NaN; 1 of 2 divisors is 0"),
        ("half_overflow", "forward", "Mul", "halves * halves", "Mul overflows float16, whose largest number is 65504"),
        ("handmade", "forward", "Exp", "tf.exp(x)", "exp overflows float32 above 88.72; the largest input is 100"),
        (
            "sqrt_backward",
            "backward",
            "SqrtGrad",
            "tf.sqrt(x))",
            "sqrt of 0 has an infinite gradient; 1 of 2 inputs is",
        ),
        ("masked_infinity_is_no_cause", "forward", "Log", "+ tf.reduce_mean(tf.math", "log of 0 is infinite; 2 of 4"),
        ("masked_whole", "forward", "Softmax", "attention = tf.nn.softmax", "softmax of nothing but infinities is NaN"),
        (
            "hidden_by_where",
            "backward",
            "Reciprocal",
            "tf.where(x > 0",
            "log of 0 has an infinite gradient; 1 of 2 inputs is",
        ),
        ("given", "forward", None, "x * np.array", "what Mul was given came not finite from the line"),
        (
            "cast_overflow",
            "forward",
            "Cast",
            '"bfloat16"), "float16"',
            "is beyond float16, whose largest number is 65504, to which bfloat16 was cast",
        ),
        ("in_a_layer", "backward", "SqrtGrad", "layer = keras", "4 of 4 inputs are 0"),
    ],
)
def test_the_operation_that_began_it(
    causes: dict[str, Any], name: str, phase: str, operation: str | None, line: str, words: str
) -> None:
    found = causes[name]
    assert (found["phase"], found["operation"]) == (phase, operation)
    assert found["where"][0][1] == line_of(line)
    assert words in found["words"]


def test_what_is_told_beside(causes: dict[str, Any]) -> None:
    statistics = causes["masked_mean"]["inputs"][1]
    assert statistics == {
        "name": "",
        "dtype": "float32",
        "shape": [2],
        "min": 0.0,
        "max": 2.0,
        "mean": 1.0,
        "zeros": 1,
        "nonfinite": 0,
        "negative": 0,
        "subnormal": 0,
    }
    assert causes["masked_mean"]["first_nonfinite"] == {
        "output": 0,
        "index": [0],
        "value": "nan",
        "inputs": ["0.0", "0.0"],
    }
    assert causes["in_a_layer"]["layer"] == "inner/root"
    assert causes["norm_at_zero"]["gradient_of"] == "Sqrt"


def test_samples_are_named_where_rows_stayed_and_none_where_they_moved(causes: dict[str, Any]) -> None:
    assert causes["stay"] == [[2]] * len(causes["stay"])
    assert causes["move"] == [None] * len(causes["move"])


@pytest.mark.extended
def test_no_sample_is_named_of_a_batch_that_the_step_shuffles(tmp_path: Path) -> None:
    shuffling = captured(tmp_path, script("shuffled"))
    found, done = shuffling.redo("explain", script("shuffled"))
    assert (found["reproduced"], found["operation"], found["samples"]) == (True, "Exp", None), done.stderr


def line_in_steps(text: str) -> int:
    return next(number for number, line in enumerate(STEPS.splitlines(), 1) if text in line)


def test_a_step_of_fit_again_and_the_smallest_part_of_its_batch(steps: Steps) -> None:
    found, done = steps.redo("minimize", script("fit"))
    assert done.returncode == 0, done.stderr
    assert found["reproduced"] is True
    assert found["gradients"] == {"equal": 6, "different": [], "nonfinite_equal": True}
    assert found["loss"]["equal"] is True
    assert (found["samples"], found["of"], found["smallest"], found["only_full"]) == ([5], 16, True, False)
    assert [line["samples"] for line in steps.progress() if line.get("reproduced")][-1] == [5]


def test_a_step_of_a_function_again(steps: Steps) -> None:
    found, done = steps.redo("explain", script("function"), 1)
    assert done.returncode == 0, done.stderr
    assert found["gradients"] == {"equal": 4, "different": [], "nonfinite_equal": True}
    assert found["loss"]["equal"] is True
    assert (found["phase"], found["operation"]) == ("forward", "Exp")
    assert found["where"][0][1:] == [line_in_steps("tf.exp("), "softmax"]


def test_a_step_of_a_loop_in_eager_code_again(steps: Steps) -> None:
    found, done = steps.redo("minimize", script("eager", epochs=2), 2)
    assert done.returncode == 0, done.stderr
    assert found["gradients"] == {"equal": 4, "different": [], "nonfinite_equal": True}
    assert (found["samples"], found["smallest"]) == ([5], True)


@pytest.mark.extended
def test_a_step_of_a_batch_that_was_put_together_by_hand_again(steps: Steps) -> None:
    """Of the function's variables those that batches are taken of are no part of them, others have fewer rows."""
    (batch,) = steps.header(3)["batches"]
    names = [name["text"] for name, _ in batch["value"]["dict"]]
    assert {"batch", "wanted", "weights"} <= set(names)
    assert not {"data", "labels"} & set(names)
    found, done = steps.redo("minimize", script("by_hand", epochs=2), 3)
    assert done.returncode == 0, done.stderr
    assert found["gradients"] == {"equal": 4, "different": [], "nonfinite_equal": True}
    assert (found["samples"], found["smallest"]) == ([5], True)


@pytest.mark.extended
def test_a_step_whose_loop_chooses_the_batch_by_its_number_again(steps: Steps) -> None:
    found, done = steps.redo("explain", script("by_number", epochs=2), 4)
    assert done.returncode == 0, done.stderr
    assert found["gradients"] == {"equal": 1, "different": [], "nonfinite_equal": True}
    assert (found["operation"], found["samples"]) == ("SqrtGrad", None)
    assert found["where"][0][1:] == [line_in_steps("tf.norm(inputs"), "distances"]


@pytest.mark.extended
def test_a_step_of_gradients_that_a_variable_sums_up_again(steps: Steps) -> None:
    found, done = steps.redo("explain", script("summed", epochs=2), 5)
    assert done.returncode == 0, done.stderr
    assert found["gradients"] == {"equal": 1, "different": [], "nonfinite_equal": True}
    assert (found["phase"], found["gradient_of"]) == ("backward", "Log")
    assert found["where"][0][1] == line_in_steps("tf.math.log(")
