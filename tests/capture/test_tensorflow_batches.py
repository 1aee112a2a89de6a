"""TensorFlow 2 and Keras 3: batches and loops of all builds captured, and done again bit by bit."""

from __future__ import annotations

import pytest

from tests.capture.tensorflow_steps import Steps
from tests.support import training_text

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SCRIPT = training_text("tensorflow_batches.py")

NAMES = [
    "two_optimizers",
    "texts",
    "mixed_rows",
    "one_by_one",
    "sums_of_keras",
    "sums",
    "sums_in_one",
    "two_sets",
    "halves",
]

EXTENDED = ["texts", "mixed_rows", "one_by_one", "sums_of_keras", "sums", "halves"]


def script(*names: str) -> str:
    return SCRIPT.replace("TRAININGS = []", f"TRAININGS = [{', '.join(names)}]")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    found = Steps(tmp_path_factory.mktemp("batches"))
    done = found.capture(script(*NAMES), "skip", max_snapshots=20)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("reprokit: captured:") == len(NAMES), done.stderr
    assert "warning" not in done.stderr
    return found


def number_of(steps: Steps, name: str) -> int:
    """Which of the snapshots in their order is of this training."""
    written = sorted(steps.snapshots, key=lambda path: (path / "snapshot.json").stat().st_mtime_ns)
    return steps.snapshots.index(written[NAMES.index(name)])


def nodes(value: object) -> set[str]:
    """The kinds of nodes in a packed value."""
    if isinstance(value, dict):
        return set(value).union(*map(nodes, value.values()))
    return set().union(*map(nodes, value)) if isinstance(value, list) else set()


@pytest.mark.extended
def test_batches_of_all_builds_are_kept(steps: Steps) -> None:
    (batch,) = steps.header(number_of(steps, "texts"))["batches"]
    assert {"dict", "strings", "tensor"} <= nodes(batch["value"])
    (batch,) = steps.header(number_of(steps, "mixed_rows"))["batches"]
    assert {"dict", "strings", "ragged", "sparse"} <= nodes(batch["value"])
    assert [header["samples"] for header in steps.header(number_of(steps, "one_by_one"))["batches"]] == [8]


def test_gradients_that_are_summed_come_with_all_their_batches(steps: Steps) -> None:
    for name in ("sums", "sums_in_one"):
        header = steps.header(number_of(steps, name))
        assert [batch["samples"] for batch in header["batches"]] == [4, 4], name
        assert header["step"] == 2, name
        assert any(model["class"] == "Variables" for model in header["models"]), name  # the sums before the first


def test_a_step_of_two_data_sets_has_a_batch_of_each(steps: Steps) -> None:
    header = steps.header(number_of(steps, "two_sets"))
    assert [(batch["from"], batch["samples"]) for batch in header["batches"]] == [("loader", 8), ("loader", 8)]
    found, done = steps.redo("minimize", script("two_sets"), number_of(steps, "two_sets"))
    assert "the step has 2 batches, and only one can be minimized" in str(found) + done.stderr


def test_a_step_of_two_optimizers_is_captured_once_with_both_models(steps: Steps) -> None:
    header = steps.header(number_of(steps, "two_optimizers"))
    assert header["trigger"]["name"].endswith("/bias")
    trained = {name.rpartition("/")[2] for model in header["models"][:2] for name in model["tensors"]}
    assert {"kernel", "gamma"} <= trained


def test_overflows_of_a_scaled_loss_are_no_alarms_and_a_nan_is(steps: Steps) -> None:
    header = steps.header(number_of(steps, "halves"))
    assert header["trigger"]["kind"] == "gradient"
    assert header["loss"]["value"] == "nan"
    assert float.fromhex(header["precision"]["scale"]) < 2.0**40


@pytest.mark.parametrize(
    "name",
    [
        "two_sets",
        pytest.param("two_optimizers", marks=pytest.mark.extended),
        pytest.param("sums_in_one", marks=pytest.mark.extended),
        *[pytest.param(name, marks=pytest.mark.extended) for name in EXTENDED],
    ],
)
def test_the_step_comes_to_the_same_bits_again(steps: Steps, name: str) -> None:
    number = number_of(steps, name)
    found, done = steps.redo("reproduce", script(name), number)
    assert done.returncode == 0, done.stderr
    assert found.get("reproduced") is True, found
    count = len(steps.header(number)["gradient_digests"])
    assert found["gradients"] == {"equal": count, "different": [], "nonfinite_equal": True}, name
