"""Graphs of functions and of fit, where training is to stop at a step that is not finite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.agent.capture.store import SnapshotFile
from tests.capture.tensorflow_steps import Done, Steps
from tests.support import training_text

pytestmark = pytest.mark.tensorflow


def script(case: str) -> str:
    return training_text("tensorflow_stopped.py", case)


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    """Trainings in a directory of their own."""
    return Steps(tmp_path)


def told(done: Done) -> list[dict[str, Any]]:
    """What a script said."""
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def batch(path: Path) -> numpy.ndarray:
    """What the function was called with."""
    file = SnapshotFile(str(path))
    (name,) = [name for name in file.tensors if name.startswith("batch.")]
    return numpy.frombuffer(file.tensors[name].data, "f4")


@pytest.mark.slow
def test_the_state_is_that_before_the_step(steps: Steps) -> None:
    (found,) = told(steps.capture(script("states")))
    assert found["good"] == [None, found["bad"][1]]
    assert found["bad"][0] == 123
    assert [steps.header()["step"], steps.header()["steps_in_epoch"]] == [5, 5]


@pytest.mark.extended
def test_no_update_behind_a_bad_one_in_the_same_graph_is_made(steps: Steps) -> None:
    (found,) = told(steps.capture(script("first_of_two")))
    assert (found["code"], found["same"]) == (123, True)
    assert steps.header()["trigger"]["optimizers"] == ["optimizer#0"]
    assert len(steps.snapshots) == 1


@pytest.mark.slow
def test_of_two_updates_in_a_graph_none_is_left_where_the_second_is_bad(steps: Steps) -> None:
    (found,) = told(steps.capture(script("two")))
    assert (found["code"], found["same"]) == (123, True)
    assert steps.header()["trigger"]["optimizers"] == ["optimizer#1"]


@pytest.fixture(scope="module")
def one_graph(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[dict[str, Any]], list[Path]]]:
    """What several trainings by the same graph said, one after another in a process, and their snapshots."""
    steps = Steps(tmp_path_factory.mktemp("one-graph"))
    found: dict[str, tuple[list[dict[str, Any]], list[Path]]] = {}
    said: list[dict[str, Any]] = []
    first = 0
    for line in told(steps.capture(script("one_graph"), max_snapshots=20)):
        if "ended" in line:
            found[line["ended"]] = said, steps.snapshots[first : line["snapshots"]]
            said, first = [], line["snapshots"]
        else:
            said.append(line)
    return found


@pytest.mark.extended
def test_it_is_captured_however_the_graph_was_called(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    said, snapshots = one_graph["calls"]
    assert said == [{"codes": [123] * 3, "steps": 2, "finite": True}]
    assert len(snapshots) == 3


@pytest.mark.slow
def test_errors_of_the_script_s_own_leave_nothing_behind(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    said, (snapshot,) = one_graph["errors"]
    assert said == [{"message": True}] * 2 + [{"code": 123}]
    assert numpy.isnan(batch(snapshot)).all()


@pytest.mark.slow
def test_what_the_script_catches_within_is_its_own_error_and_not_a_captured_step(
    one_graph: dict[str, tuple[list[Any], list[Path]]],
) -> None:
    said, snapshots = one_graph["caught"]
    assert said == [{"caught": "InvalidArgumentError"}, {"code": 123}]
    assert len(snapshots) == 1


@pytest.mark.slow
def test_other_threads_in_the_same_graph_go_on(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    said, (snapshot,) = one_graph["threads"]
    assert said == [{"codes": {"b": 123}}]
    assert numpy.isnan(batch(snapshot)).all()


@pytest.mark.slow
def test_a_model_that_the_script_drops_is_gone(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    assert one_graph["dropped"] == ([{"alive": False}], [])


@pytest.mark.extended
def test_of_models_that_are_fitted_in_threads_the_one_with_the_bad_step_ends(steps: Steps) -> None:
    assert told(steps.capture(script("fits"))) == [{"codes": {"bad": 123}}]
    (model,) = steps.header()["models"]
    assert {name.partition("/")[0] for name in (*model["tensors"], steps.header()["trigger"]["name"])} == {
        "bad",
        "loss",
    }


@pytest.mark.extended
def test_the_last_losses_are_known(steps: Steps) -> None:
    (found,) = told(steps.capture(script("last")))
    assert found["code"] == 123
    assert [float.fromhex(loss) for loss in steps.header()["losses"]] == found["losses"][-100:]


@pytest.mark.extended
def test_a_step_on_another_processor_is_captured_too(steps: Steps) -> None:
    assert told(steps.capture(script("processors"))) == [{"code": 123, "finite": True}]
    (snapshot,) = steps.snapshots
    assert numpy.isnan(batch(snapshot)).tolist() == [False, True, False, False]


@pytest.mark.slow
def test_a_train_function_may_be_one_that_nothing_can_be_noted_at(steps: Steps) -> None:
    assert told(steps.capture(script("method"))) == [{"code": 123}]
    assert steps.header()["step"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "action", "code"),
    [
        ("saved", "stop", 123),
        pytest.param("saved_by_xla", "skip", None, marks=pytest.mark.extended),
        pytest.param("saved", "skip", None, marks=pytest.mark.extended),
        pytest.param("saved_by_xla", "stop", 123, marks=pytest.mark.extended),
    ],
)
def test_a_function_that_trains_can_be_saved(steps: Steps, case: str, action: str, code: int | None) -> None:
    """As those are that are to be trained on devices; TensorFlow refuses graphs with variables that nobody saves."""
    (found,) = told(steps.capture(script(case), action))
    inference = found.pop("inference")
    assert found.pop("order") == list(range(12))  # by which Keras' export numbers variables
    held = found.pop("held")
    assert held == sorted(held)  # handed to the host in the order in which they were read
    assert (len(held) > 1) == (case == "saved")
    assert found == {"first": 2400.0, "loaded": 1200.0, "code": code}
    assert inference == ["_CHECKPOINTABLE_OBJECT_GRAPH", "w/.ATTRIBUTES/VARIABLE_VALUE"]  # and nothing of ours
    assert len(steps.snapshots) == 1


@pytest.mark.slow
def test_large_numbers_of_all_kinds_are_no_alarm(one_graph: dict[str, tuple[list[Any], list[Path]]]) -> None:
    (first, second), _ = one_graph["overflow"]
    assert first == {"finite": True, "sum": float("inf")}
    assert second == {"codes": [123] * 3, "steps": 1}
