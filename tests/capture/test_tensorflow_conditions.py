"""TensorFlow 2 and Keras 3: steps that are finite, and captured for a condition, and numbers that no state tells."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capture.tensorflow_steps import Steps
from tests.support import training_text

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SCRIPT = training_text("tensorflow_conditions.py")

WORDS = {"loss": "loss>50", "jump": "gradient-jump>50", "activation": "not finite"}
NAMES = ["fit-loss", "function-jump", "function-activation"]
MORE = [
    "fit-jump",
    "fit-activation",
    "function-loss",
    *[f"{mode}-{what}" for mode in ("compiled", "eager") for what in WORDS],
]


def script(*names: str) -> str:
    return SCRIPT.replace("NAMES = []", f"NAMES = {names!r}")


def capture(directory: Any, names: list[str]) -> Steps:
    steps = Steps(directory)
    conditions = ["loss>50", "gradient-jump>50", "activations"]
    done = steps.capture(script(*names), "skip", max_snapshots=20, conditions=conditions)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return steps


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return capture(tmp_path_factory.mktemp("conditions"), NAMES)


def number_of(steps: Steps, place: int) -> int:
    """Which of the snapshots in their order is that of the training in this place."""
    written = sorted(steps.snapshots, key=lambda path: (path / "snapshot.json").stat().st_mtime_ns)
    return steps.snapshots.index(written[place])


def check(steps: Steps, names: list[str]) -> None:
    """Each training has a snapshot for what it met, of a step that was finite."""
    assert len(steps.snapshots) == len(names)
    for place, name in enumerate(names):
        header, what = steps.header(number_of(steps, place)), name.split("-")[1]
        assert (header["step"], header["trigger"]["what"]) == (12, WORDS[what]), name
        assert header["also"] == [], name
        assert header["gradients"] == {}, name
        if what == "activation":
            assert header["trigger"]["name"].endswith("/reciprocal"), name
        else:
            limit, value = (float.fromhex(header["trigger"][key]) for key in ("limit", "value"))
            assert value > limit, name


def test_conditions_hold_in_fit_and_in_functions(steps: Steps) -> None:
    check(steps, NAMES)


def test_numbers_of_operations_with_a_state_of_their_own_are_kept_and_given_again(steps: Steps) -> None:
    place = NAMES.index("function-activation")
    header = steps.header(number_of(steps, place))
    assert header["notes"] == []
    found, done = steps.redo("reproduce", script("function-activation"), number_of(steps, place))
    assert done.returncode == 0, done.stderr
    assert found["reproduced"] is True
    assert found["gradients"] == {"equal": 4, "different": [], "nonfinite_equal": True}
    assert found["loss"]["equal"] is True


@pytest.mark.extended
def test_conditions_hold_wherever_they_are_looked_for(steps: Steps, tmp_path: Any) -> None:
    more = capture(tmp_path, MORE)
    check(more, MORE)
    for found, names in ((steps, ["fit-loss"]), (more, ["fit-jump", "compiled-activation", "eager-activation"])):
        for name in names:
            number = number_of(found, (NAMES if found is steps else MORE).index(name))
            again, done = found.redo("reproduce", script(name), number)
            assert done.returncode == 0, done.stderr
            assert again["reproduced"] is True, name
            assert again["gradients"]["different"] == [], name
