"""reprokit.trial: what was saved is read, as far as it was, and what was not is said."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import psutil
import pytest

import reprokit as product
from reprokit.core.errors import BadRule, NothingSaved, ReprokitError, TensorUnavailable
from reprokit.model.run import FINISHED, RUNNING
from reprokit.saved_tensors.trial import (
    InvalidWorker,
    NoMoreData,
    StepAvailability,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from tests.saved_tensors.writer import KEY, TensorWriter, run_directory
from tests.support import Reprokit

WEIGHT = numpy.arange(8, dtype="float32").reshape(2, 4)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a weight at steps 0, 2 and 4, a loss, an evaluation, and one tensor of which reductions were saved."""
    run = run_directory(tmp_path / "run")
    writer = TensorWriter(run)
    writer.name("fc.weight", "weights", aliases=["tied.weight"], module="fc", layer="Linear", place=["train.py", 12])
    writer.name("Loss_output_0", "losses", module="criterion", layer="CrossEntropyLoss")
    for step in (0, 2, 4):
        writer.save(step, {"fc.weight": WEIGHT + step, "Loss_output_0": numpy.float32(1 / (step + 1))})
        writer.reduce(step, "gradient/fc.weight", l2=0.5 * step, abs_mean=0.25)
        writer.pass_step(step)
    writer.save(4, {"Loss_output_0": numpy.float32(9)}, mode="eval")
    writer.pass_step(4, "eval")
    writer.end()
    return run


def test_names_are_found_by_collection_expression_step_and_mode(run: Path) -> None:
    trial = product.trial(run)
    assert trial.tensor_names() == ["Loss_output_0", "fc.weight", "gradient/fc.weight"]
    assert trial.tensor_names(collection="weights") == ["fc.weight"]
    assert trial.tensor_names(regex="^gradient") == ["gradient/fc.weight"]
    assert trial.tensor_names(mode="eval", step=4) == ["Loss_output_0"]
    assert trial.tensor_names(step=3) == []
    assert trial.collection("weights").tensor_names == ("fc.weight",)
    assert sorted(trial.collections()) == ["losses", "weights"]
    assert trial.modes() == ["train", "eval"]
    assert trial.workers() == ["0"]
    assert trial.loaded_all_steps


def test_an_expression_and_a_collection_narrow_the_names_together(run: Path) -> None:
    trial = product.trial(run)
    assert trial.tensor_names(regex="weight", collection="weights") == ["fc.weight"]
    assert trial.tensor_names(regex="Loss", collection="weights") == []
    assert trial.tensor_names(regex=["Loss", "gradient"]) == ["Loss_output_0", "gradient/fc.weight"]


def test_a_trial_has_a_name_and_a_range_of_steps(run: Path) -> None:
    trial = product.trial(run, name="first", range_steps=(2, 4))
    assert (trial.name, trial.steps(), trial.tensor("fc.weight").steps()) == ("first", [2], [2])
    assert product.trial(run, range_steps=(1, None)).steps() == [2, 4]
    with pytest.raises(TensorUnavailable, match="range_steps='now' is not"):
        product.trial(run, range_steps="now")  # type: ignore[arg-type]


def test_a_step_without_a_mode_is_one_of_the_mode_that_counts(run: Path) -> None:
    trial = product.trial(run)
    assert (trial.mode(global_step=4), trial.mode_step(global_step=4)) == ("train", 4)
    assert trial.global_step(mode="eval", mode_step=4) == 4
    with pytest.raises(StepUnavailable):
        trial.mode(3)
    with pytest.raises(NoMoreData):
        trial.mode_step(9)
    with pytest.raises(TensorUnavailable):
        trial.global_step("eval", 2)


def test_workers_have_the_names_that_sagemaker_debugger_gives_them(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")
    for number, rank in enumerate(("1", "0", "10")):
        writer = TensorWriter(run, key=f"0123456789abcdef-{number + 1}", rank=rank)
        writer.save(0, {"w": WEIGHT + int(rank)})
        writer.pass_step(0)
        writer.end()
    weight = product.trial(run).tensor("w")
    assert [weight.value(0, worker=f"worker_{rank}")[0, 0] for rank in (0, 1, 10)] == [0, 1, 10]
    with pytest.raises(InvalidWorker, match="not 'worker_7'"):
        weight.value(0, worker="worker_7")


def test_a_trial_stays_as_it_is_while_it_is_asked_not_to_refresh(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", status=RUNNING, host="elsewhere")
    writer = TensorWriter(run)
    writer.save(0, {"w": WEIGHT})
    writer.pass_step(0)
    trial = product.trial(run)
    with product.no_refresh(trial):
        writer.save(1, {"w": WEIGHT})
        writer.pass_step(1)
        assert trial.steps() == [0]
    assert trial.steps() == [0, 1]


class LargeWeight:
    """A rule as SageMaker Debugger's users write it."""

    def __init__(self, base_trial: object, threshold: float) -> None:
        self.base_trial, self.threshold = base_trial, threshold
        self.asked: list[int] = []

    def invoke_at_step(self, step: int) -> bool:
        self.asked.append(step)
        weight = self.base_trial.tensor("fc.weight")  # type: ignore[attr-defined]
        return bool(weight.reduction_value(step, "max") > self.threshold)


def test_a_rule_of_ones_own_is_invoked_for_some_steps(run: Path) -> None:
    rule = LargeWeight(product.trial(run), 8.5)
    (finding,) = product.rules.invoke_rule(rule, start_step=1)
    assert (rule.asked, finding.rule, finding.step) == ([2, 4], "LargeWeight", 2)
    assert product.rules.invoke_rule(LargeWeight(product.trial(run), 8.5), end_step=2) == []
    with pytest.raises(product.rules.RuleEvaluationConditionMet, match="LargeWeight at step 2: LargeWeight is met"):
        product.rules.invoke_rule(LargeWeight(product.trial(run), 8.5), raise_eval_cond=True)
    with pytest.raises(BadRule, match="LargeWeight failed after step 0"):
        product.rules.invoke_rule(LargeWeight(product.trial(run), None))  # type: ignore[arg-type]


def test_values_are_those_that_were_saved(run: Path) -> None:
    trial = product.trial(run)
    weight = trial.tensor("tied.weight")
    assert weight.name == "fc.weight"
    assert weight.steps() == trial.steps(mode="train") == [0, 2, 4]
    assert numpy.array_equal(weight.value(2), WEIGHT + 2)
    assert list(weight.values()) == [0, 2, 4]
    assert weight.shape(4) == (2, 4)
    assert weight.prev_steps(3, 1) == [2]
    assert (weight.module, weight.layer, weight.place) == ("fc", "Linear", ("train.py", 12))
    assert trial.tensor("Loss_output_0").value(4, mode="eval") == 9
    assert trial.order() == [("train", 0), ("train", 2), ("train", 4), ("eval", 4)]


def test_reductions_are_the_saved_ones_or_computed(run: Path) -> None:
    trial = product.trial(run)
    gradient, weight = trial.tensor("gradient/fc.weight"), trial.tensor("fc.weight")
    assert gradient.reduction_value(4, "l2") == 2
    assert gradient.reduction_value(4, "mean", abs=True) == 0.25
    assert gradient.reduction_values(4) == {("l2", False): 2.0, ("mean", True): 0.25}
    computed = {name: weight.reduction_value(0, name) for name in ("min", "max", "mean", "sum", "l1")}
    assert computed == {"min": 0, "max": 7, "mean": 3.5, "sum": 28, "l1": 28}
    assert weight.reduction_value(0, "l2") == pytest.approx(numpy.linalg.norm(WEIGHT))
    assert weight.reduction_value(0, "std") == pytest.approx(WEIGHT.std())
    with pytest.raises(TensorUnavailable, match="no reduction is called 'median'"):
        weight.reduction_value(0, "median")


def test_a_value_and_its_reductions_are_of_the_same_call(tmp_path: Path) -> None:
    writer = TensorWriter(run_directory(tmp_path / "run"))
    writer.reduce(0, "fc.weight", l2=7)
    for call in range(3):
        writer.save(0, {"fc.weight": WEIGHT + call}, call=call)
    writer.reduce(0, "fc.weight", mean=8)
    writer.end()
    weight = product.trial(tmp_path / "run").tensor("fc.weight")
    assert weight.calls(0) == 3
    assert [weight.value(0, call=call)[0, 0] for call in range(3)] == [0, 1, 2]
    assert weight.has_value(0)
    assert weight.reduction_values(0) == {("l2", False): 7, ("mean", False): 8}
    assert weight.reduction_value(0, "l2", call=1) == pytest.approx(numpy.linalg.norm(WEIGHT + 1))


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda trial: trial.tensor("fc.wieght"), TensorUnavailable, "near names: fc.weight"),
        (lambda trial: trial.tensor("fc.weight").value(3), StepUnavailable, "near steps: 2, 4"),
        (lambda trial: trial.tensor("fc.weight").value(5), NoMoreData, "its last saved step is 4"),
        (
            lambda trial: trial.tensor("fc.weight").value(4, mode="eval"),
            TensorUnavailableForStep,
            "not saved at step 4",
        ),
        (lambda trial: trial.tensor("gradient/fc.weight").value(4), TensorUnavailableForStep, "only reductions"),
        (lambda trial: trial.tensor("fc.weight").value(4, worker="7"), InvalidWorker, "not '7'"),
        (lambda trial: trial.steps(mode="test"), TensorUnavailable, "no mode is called 'test'"),
        (lambda trial: trial.wait_for_steps([4, 8]), NoMoreData, "no step 8"),
    ],
)
def test_what_is_not_there_is_an_error_of_its_own(
    run: Path, ask: Callable[..., object], error: type[ReprokitError], text: str
) -> None:
    with pytest.raises(error, match=text):
        ask(product.trial(run))


def test_a_value_that_was_dropped_says_why(run: Path) -> None:
    TensorWriter(run, "0" * 16 + "-2").line(dropped=2, mode="train", why="disk-full", name="big")
    trial = product.trial(run)
    trial._tensor_named("big")
    with pytest.raises(TensorUnavailableForStep, match="as the disk was full"):
        trial.tensor("big").value(2)


def test_a_run_without_tensors_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(NothingSaved, match="reprokit ask"):
        product.trial(run_directory(tmp_path / "empty"))


def test_a_run_is_followed_while_it_is_written(tmp_path: Path) -> None:
    launcher = {"launcher_pid": os.getpid(), "launcher_started": psutil.Process().create_time()}
    run = run_directory(tmp_path / "live", status=RUNNING, host=platform.node(), **launcher)
    trial = product.trial(run)
    assert trial.tensor_names() == []
    writer = TensorWriter(run)
    writer.save(0, {"w": WEIGHT})
    assert trial.steps() == []
    assert trial.steps(show_incomplete_steps=True) == [0]
    assert trial.has_passed_step(0) is StepAvailability.NOT_YET_AVAILABLE
    writer.pass_step(0)
    assert trial.has_passed_step(0) is StepAvailability.AVAILABLE
    with pytest.raises(StepNotYetAvailable):
        trial.tensor("w").value(1)

    def go_on() -> None:
        time.sleep(0.3)
        writer.save(1, {"w": WEIGHT + 1})
        writer.pass_step(1)

    thread = threading.Thread(target=go_on)
    thread.start()
    trial.wait_for_steps([1])
    thread.join()
    assert trial.tensor("w").value(1)[0, 0] == 1
    assert not trial.loaded_all_steps
    (run / "run.json").unlink()
    run_json = run_directory(tmp_path / "ended", status=FINISHED) / "run.json"
    run_json.rename(run / "run.json")
    time.sleep(1.1)
    with pytest.raises(NoMoreData):
        trial.wait_for_steps([2])


def test_a_step_is_complete_once_all_ranks_have_passed_it(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "ranks", status=RUNNING, host="elsewhere")
    first, second = (TensorWriter(run, f"{number:016x}-1") for number in (1, 2))
    for number, writer in enumerate((first, second)):
        writer.save(0, {"w": WEIGHT + number})
    first.pass_step(0)
    trial = product.trial(run)
    assert trial.steps() == []
    second.pass_step(0)
    assert trial.steps() == [0]


def test_workers_are_named_by_rank(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "ranks")
    for number in (0, 1):
        index = run / "tensors" / f"{number:016x}-1.jsonl"
        index.parent.mkdir(exist_ok=True)
        index.write_text(json.dumps({"format": 1, "process": f"rank{number}", "rank": str(number)}) + "\n")
        value = {"step": 0, "mode": "train", "name": "w", "reductions": {"l2": number}}
        index.write_text(index.read_text() + json.dumps(value) + "\n")
    trial = product.trial(run)
    assert trial.workers() == ["rank0", "rank1"]
    assert trial.tensor("w").workers(0) == ["rank0", "rank1"]
    assert trial.tensor("w").reduction_value(0, "l2", worker="rank1") == 1


def test_types_that_numpy_lacks_become_wider_ones_without_loss(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "types")
    writer = TensorWriter(run)
    writer.save(0, {"b": numpy.array([0x3F80, 0xC000, 0x7F80], "uint16")}, dtype="bfloat16")
    writer.line(step=0, mode="train", name="f", shard=1, key="0", dtype="float8_e4m3fn", shape=[2])
    writer.save(1, {"bytes": numpy.array([0x38, 0xFE], "uint8")})
    writer.save(2, {"empty": numpy.zeros((0, 3), "float32"), "scalar": numpy.float64(2.5)})
    trial = product.trial(run)
    assert trial.tensor("b").value(0).tolist() == [1.0, -2.0, float("inf")]
    assert trial.tensor("f").value(0).tolist() == [1.0, -448.0]
    assert trial.tensor("empty").value(2).shape == (0, 3)
    assert trial.tensor("scalar").value(2) == 2.5
    assert numpy.isnan(trial.tensor("empty").reduction_value(2, "mean"))


def test_what_the_model_was_given_and_gave(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "loss")
    writer = TensorWriter(run)
    writer.name("fc_input_0", "inputs")
    writer.save(0, {"fc_input_0": WEIGHT, "CrossEntropyLoss_input_0": WEIGHT, "CrossEntropyLoss_input_1": [1, 2]})
    trial = product.trial(run)
    assert list(trial.inputs(0)) == ["fc_input_0"]
    assert trial.labels(0)["CrossEntropyLoss_input_1"].tolist() == [1, 2]
    assert list(trial.predictions(0)) == ["CrossEntropyLoss_input_0"]


HOSTILE: dict[str, Callable[[Path], object]] = {
    "an index that is no JSON": lambda tensors: (tensors / f"{KEY}.jsonl").write_text("{\n"),
    "an index without a beginning": lambda tensors: (tensors / f"{KEY}.jsonl").write_text('{"step": 1}\n'),
    "an endless line": lambda tensors: (tensors / f"{KEY}.jsonl").write_text("[" * (2 << 20)),
    "a later format": lambda tensors: (tensors / f"{KEY}.jsonl").write_text('{"format": 2}\n'),
    "a negative step": lambda tensors: add(tensors, step=-1),
    "a shard that is not there": lambda tensors: add(tensors, shard=77),
    "a path for a shard": lambda tensors: add(tensors, shard="../../x"),
    "an endless shape": lambda tensors: add(tensors, shape=[1 << 53] * 60),
    "another shape": lambda tensors: add(tensors, shape=[3]),
    "a shape that is negative": lambda tensors: add(tensors, shape=[-8]),
    "another type": lambda tensors: add(tensors, dtype="float64"),
    "a type that is none": lambda tensors: add(tensors, dtype="object"),
    "a key that is not there": lambda tensors: add(tensors, key="x"),
    "an index that is a link": lambda tensors: linked(tensors / f"{KEY}.jsonl"),
    "a shard that is a link": lambda tensors: linked(tensors / f"{KEY}-000000.safetensors"),
    "a shard that is cut": lambda tensors: os.truncate(tensors / f"{KEY}-000000.safetensors", 100),
    "a shard with an endless header": lambda tensors: header(tensors, b"\xff" * 8),
    "a shard with another header": lambda tensors: header(tensors, (3).to_bytes(8, "little") + b"[1]"),
    "a FIFO": lambda tensors: fifo(tensors / f"{KEY}-000000.safetensors"),
}


def add(tensors: Path, **facts: object) -> None:
    value = {"step": 0, "mode": "train", "name": "w", "shard": 0, "key": "0", "dtype": "float32", "shape": [2, 4]}
    (tensors / f"{KEY}.jsonl").write_text('{"format": 1, "process": "0"}\n' + json.dumps({**value, **facts}) + "\n")


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def header(tensors: Path, data: bytes) -> None:
    with open(tensors / f"{KEY}-000000.safetensors", "r+b") as file:
        file.write(data)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tensors_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    run = run_directory(tmp_path / "run")
    writer = TensorWriter(run)
    writer.save(0, {"w": WEIGHT})
    HOSTILE[name](run / "tensors")
    with pytest.raises(ReprokitError) as refused:
        product.trial(run).tensor("w").value(0)
    assert "\n" not in str(refused.value)
    assert refused.value.slug in ("run-damaged", "run-too-new", "tensor-unavailable")


def test_reading_needs_numpy_and_no_framework(run: Path) -> None:
    code = f"""
import sys
import reprokit
print(reprokit.trial({str(run)!r}).tensor("fc.weight").value(4).sum())
print(*sorted({{"torch", "tensorflow", "pickle5"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["60.0"]


def test_show_draws_tensors_over_the_steps(reprokit: Reprokit, run: Path) -> None:
    shown = reprokit.run("show", "--tensors", "run").stdout
    assert "fc.weight" in shown
    assert "▁▅█" in shown
    document = json.loads(reprokit.run("show", "--tensors", "--json", "run").stdout)
    assert document["complete"]
    assert document["tensors"][1]["means"] == [3.5, 5.5, 7.5]
