"""The trail of a training by TensorFlow and Keras: what it holds of each step, and that graphs stay what they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest

from reprokit.run_files.trails import Series, TrailStep
from tests import trails
from tests.agent.test_trail import Trailed
from tests.agent.training import Outcome
from tests.interpreters import tf114_python
from tests.support import training_text


class Graphs(Trailed):
    """A training whose gradients inside graphs are digested too."""

    def environment(self, python_path: Sequence[Path] = (), **variables: str) -> dict[str, str]:
        environment = super().environment(python_path, **variables)
        plan = self.run_directory / "plan.json"
        plan.write_text(json.dumps({**json.loads(plan.read_text()), "trail_gradients": "in graphs"}))
        return environment


def trained(place: Path, case: str, kind: type[Trailed] = Trailed) -> tuple[Trailed, Outcome]:
    place.mkdir(exist_ok=True)
    training = kind(place)
    outcome = training.run(training_text("tensorflow_trailed.py", case))
    assert outcome.status == 0, outcome.errors
    assert [line["text"] for line in outcome.of("warning")] == []
    return training, outcome


def named(training: Trailed, name: str) -> Series:
    (found,) = [series for trail in training.trails() for series in trail.series if series.name == name]
    return found


def differences(left: list[TrailStep], right: list[TrailStep]) -> list[tuple[int, str]]:
    names = ("torch", "loss", "gradients", "parameters")
    return [
        (a.number, name)
        for a, b in zip(left, right, strict=True)
        for name in names
        if getattr(a, name) != getattr(b, name)
    ]


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Trailed:
    """One training by fit, which several tests look at."""
    return trained(tmp_path_factory.mktemp("fitted") / "left", "fit")[0]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_fit_keeps_results_and_random_state_of_each_step_and_the_weights_of_each_seventeenth(
    fitted: Trailed, tmp_path: Path
) -> None:
    left, (right, _) = fitted, trained(tmp_path, "fit")
    series = named(left, "optimizer#0")
    steps = list(series.steps())
    assert differences(steps, list(named(right, "optimizer#0").steps())) == []
    assert (series.kind, series.framework, series.count) == ("Adam", "tensorflow", 41)
    assert len({step.loss for step in steps}) == 41
    assert None not in [step.torch for step in steps]
    assert [step.number for step in steps if step.parameters is not None] == [0, 17, 34]
    assert all(step.gradients is step.batch is None and not step.partial for step in steps)
    for number in (0, 17):
        kept = series.digests(number)
        assert kept is not None
        with numpy.load(left.directory / f"{number}.npz") as saved:
            values = [saved[f"arr_{place}"] for place in range(8)]
        assert list(kept.parameters) == [trails.digest(v.tobytes(), str(v.dtype), v.shape) for v in values]
        assert steps[number].parameters == trails.list_digest(kept.parameters)


@pytest.mark.extended
@pytest.mark.tensorflow
def test_gradients_in_graphs_are_kept_where_they_are_asked_for(fitted: Trailed, tmp_path: Path) -> None:
    asked, _ = trained(tmp_path, "fit", kind=Graphs)
    steps = list(named(asked, "optimizer#0").steps())
    assert None not in [step.gradients for step in steps]
    assert len({step.gradients for step in steps}) == 41
    found = differences(steps, list(named(fitted, "optimizer#0").steps()))
    assert {name for _, name in found} == {"gradients"}


@pytest.mark.slow
@pytest.mark.tensorflow
def test_an_eager_loop_keeps_gradients_and_a_compiled_one_gets_no_operation(tmp_path: Path) -> None:
    training, outcome = trained(tmp_path / "trailed", "loop")
    series = named(training, "optimizer#0")
    steps = list(series.steps())
    assert len({step.gradients for step in steps}) == 18
    assert all(step.partial for step in steps)  # the sparse one
    kept = series.digests(17)
    assert kept is not None
    with numpy.load(training.directory / "gradients.npz") as saved:
        values = [saved[f"arr_{place}"] for place in range(6)]
    assert list(kept.gradients) == [*(trails.digest(v.tobytes(), str(v.dtype), v.shape) for v in values), 0]
    bare = training.run_bare(training_text("tensorflow_trailed.py", "loop"))
    assert bare.output == outcome.output != ""
    assert len(list(named(training, "optimizer#1").steps())) == 4


@pytest.mark.slow
@pytest.mark.tf114
def test_tensorflow_1_keeps_the_same_of_fit(tmp_path: Path) -> None:
    python = tf114_python()
    if python is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    training = Trailed(tmp_path, python=python)
    outcome = training.run(training_text("tensorflow_trailed.py", "fit"))
    assert outcome.status == 0, outcome.errors
    assert not outcome.of("warning")
    series = named(training, "optimizer#0")
    steps = list(series.steps())
    assert len({step.loss for step in steps}) == series.count == 20
    assert [step.number for step in steps if step.parameters is not None] == [0, 17]
    assert [tensor.name for tensor in series.tensors(0)][:1] == ["sequential/dense/kernel:0"]
    with numpy.load(tmp_path / "17.npz") as saved:
        values = [saved[f"arr_{place}"] for place in range(8)]
    kept = series.digests(17)
    assert kept is not None
    assert list(kept.parameters) == [trails.digest(v.tobytes(), str(v.dtype), v.shape) for v in values]


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("has_generators", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_the_states_before_the_first_step_are_kept(tmp_path: Path, has_generators: bool) -> None:
    training, _ = trained(tmp_path / "run", "draws" if has_generators else "draws_nothing")
    series = named(training, "optimizer#0")
    assert set(series.generators) == ({"python", "numpy"} if has_generators else {"torch", "python", "numpy"})
    for name in ("python", "numpy"):
        state = (training.directory / f"{name}.state").read_bytes()
        assert series.generators[name] == trails.digest(state, "uint32", (625,)), name
    assert series.untouched == [], "set_random_seed has seeded both"
