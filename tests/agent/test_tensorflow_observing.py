"""What is observed of TensorFlow: operators in functions, in sessions and called eagerly, and what repeats of them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agent.training import Line, Training
from tests.interpreters import tf114_python
from tests.support import training_text

SCRIPT = training_text("tensorflow_operators.py")


@dataclass(frozen=True)
class Observed:
    """What a process observed, and what it printed."""

    script: str
    lines: list[Line]
    output: str
    run: Path

    def of(self, kind: str, **fields: Any) -> list[Line]:
        found = [line for line in self.lines if line["kind"] == kind]
        return [line for line in found if all(line[name] == value for name, value in fields.items())]

    def at(self, mark: str) -> int:
        """The number of the script's line that ends in this comment."""
        (number,) = [n for n, text in enumerate(self.script.splitlines(), 1) if text.endswith(f"# {mark}")]
        return number

    def places(self, line: Line) -> list[int]:
        assert {Path(file).name for file, _, _ in line["where"]} <= {"train.py"}
        return [number for _, number, _ in line["where"]]


def observe(training: Training, script: str, confirm: int = 0) -> Observed:
    training.write("train.py", script)
    environment = training.environment()
    plan = training.run_directory / "plan.json"
    profiling = {"functions": False, "operators": True, "steps": None, "seconds": None, "confirm": confirm}
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "profiling": profiling}))
    done = training.command([training.python, "train.py"], environment)
    assert done.status == 0, done.errors
    assert not done.of("warning")
    files = sorted((training.run_directory / "profile").glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="ascii").splitlines()]
    return Observed(script, lines, done.output, training.run_directory)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("tensorflow"))


@pytest.fixture(scope="module")
def observed(training: Training) -> Observed:
    return observe(training, SCRIPT)


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return observe(Training(tmp_path_factory.mktemp("confirmed")), SCRIPT, confirm=30)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_operators_inside_of_keras_fit_are_told_apart_by_phase(observed: Observed) -> None:
    steps = 2 * 256 // 64
    for name, phase in (("Conv2D", "forward"), ("Conv2DBackpropFilter", "backward")):
        (line,) = observed.of("operator", name=name)
        assert (line["framework"], line["phase"], line["device"]) == ("tensorflow", phase, "cpu")
        assert line["calls"] == steps
    assert {line["phase"] for line in observed.of("operator", name="BiasAddGrad")} == {"backward"}
    (convolution,) = observed.of("operator", name="Conv2D")
    assert convolution["dtypes"] == ["float32", "float32"]
    assert convolution["shapes"][1] == [3, 3, 1, 4]
    assert convolution["attributes"]["padding"] == "VALID"
    assert observed.of("operator", phase="update", name="AssignSubVariableOp")


PIPELINES = training_text("tensorflow_pipelines.py")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_it_is_told_which_parallel_functions_draw_random_numbers(tmp_path: Path) -> None:
    observed = observe(Training(tmp_path), PIPELINES)
    told: Counter[tuple[int, bool]] = Counter()
    for line in observed.of("operator", name="ParallelMapDatasetV2"):
        told[observed.places(line)[0], line["attributes"]["draws"]] += line["calls"]
    eager, inside = observed.at("eager"), observed.at("inside")
    assert told == {(eager, False): 2, (eager, True): 4, (inside, True): 1}
    assert not any("draws" in line["attributes"] for line in observed.of("operator", name="MapDataset"))


LOOP = training_text("tensorflow_loop.py")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_steps_of_a_loop_of_functions_are_counted(tmp_path: Path) -> None:
    (process,) = observe(Training(tmp_path), LOOP).of("process")
    assert process["steps"] == 6


@pytest.mark.slow
@pytest.mark.tensorflow
def test_operators_carry_the_lines_that_made_them(observed: Observed) -> None:
    (scatter,) = observed.of("operator", name="TensorScatterAdd")
    assert observed.places(scatter)[0] == observed.at("scatter")
    assert scatter["calls"] == 3
    (gather,) = observed.of("operator", name="ResourceGather")
    assert (gather["phase"], observed.places(gather)[0]) == ("forward", observed.at("embedding"))
    in_fit, eager = observed.of("operator", name="DenseBincount")
    assert observed.places(in_fit)[0] == observed.places(eager)[0] == observed.at("bincount")
    assert observed.places(in_fit)[-1] in (observed.at("in fit"), observed.at("fit"))
    assert (in_fit["calls"], eager["calls"]) == (8, 2)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_pipelines_and_compiled_functions_are_named(observed: Observed) -> None:
    pipelines = observed.of("operator", name="ParallelMapDatasetV2", phase="forward")
    (own,) = [line["attributes"] for line in pipelines if line["attributes"]["num_parallel_calls"] == 2]
    assert own["deterministic"] == "false"
    (random,) = observed.of("operator", name="RandomUniform", phase="data")
    assert observed.places(random)[0] == observed.at("augment")
    (function,) = observed.of("compiled")
    assert (function["name"], function["function"]) == ("tf.function jit_compile", "compiled")
    assert "MatMul" in function["operators"]
    assert not observed.of("operator", name="Erfc")


@pytest.mark.extended
@pytest.mark.tensorflow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor runs threads one after the other")
def test_float_bincount_is_caught_where_it_is_called(confirmed: Observed) -> None:
    (line,) = confirmed.of("confirmed", name="DenseBincount", shapes=[[256 * 4096], [], [256 * 4096]])
    assert line["repeats"] >= 30
    assert (line["results"] > 1, line["problem"]) == (True, "")
    assert line["threads"]["1"] == "repeats"
    assert line["capabilities"]


@pytest.mark.extended
@pytest.mark.tensorflow
def test_what_repeats_is_cleared(confirmed: Observed) -> None:
    for name in ["UnsortedSegmentSum", "MatMul"]:
        lines = confirmed.of("confirmed", name=name)
        (line,) = [line for line in lines if confirmed.places(line)[0] == confirmed.at("eagerly")]
        assert (line["repeats"] >= 30, line["results"], line["problem"]) == (True, 1, ""), line
        assert set(line["threads"]) >= {"1"}


@pytest.mark.extended
@pytest.mark.tensorflow
def test_operators_of_functions_are_named_and_not_repeated(confirmed: Observed) -> None:
    in_fit = [line for line in confirmed.of("confirmed", name="DenseBincount") if line["shapes"][0][0] != 256 * 4096]
    assert len(in_fit) == 1
    for line in [*in_fit, *confirmed.of("confirmed", name="Conv2D"), *confirmed.of("confirmed", name="ResourceGather")]:
        assert (line["repeats"], line["results"], line["threads"]) == (0, 0, {})
        assert line["problem"] == "operators of a tf.function are not executed again"
    assert not confirmed.of("confirmed", phase="data")


@pytest.mark.extended
@pytest.mark.tensorflow
def test_nothing_of_it_changes_the_training(training: Training, confirmed: Observed) -> None:
    assert confirmed.output == training.run_bare(SCRIPT).output
    assert not (confirmed.run / "profile" / "captured").exists()


SESSION = training_text("tensorflow1_session.py")


@pytest.mark.tf114
@pytest.mark.slow
def test_operators_of_sessions_in_tensorflow_1(tmp_path: Path) -> None:
    observed = observe(Training(tmp_path, python=tf114_python() or sys.executable), SESSION)
    (gradient,) = observed.of("operator", name="BiasAddGrad", shapes=[[-1, 6, 6, 2]])
    assert (gradient["phase"], gradient["calls"], gradient["device"]) == ("backward", 4, "cpu")
    assert observed.places(gradient)
    assert observed.of("process")[0]["steps"] == 4 + 2  # of a session the last is known only when another follows
    (gather,) = observed.of("operator", name="GatherV2", phase="forward")
    assert (observed.places(gather), gather["calls"]) == ([observed.at("gather")], 3)
    assert observed.of("operator", phase="update")
    assert not observed.of("operator", name="Sin")  # which nobody ran


COMPILED = training_text("jax_compiled.py")


@pytest.mark.slow
def test_functions_that_jax_compiles_are_named(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    observed = observe(Training(tmp_path), COMPILED)
    (line,) = observed.of("compiled", function="jit(train_step)")
    assert (line["framework"], line["calls"], observed.places(line)) == ("jax", 1, [observed.at("call")])
