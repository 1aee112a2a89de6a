"""PyTorch: every loss, optimizer step, epoch and digest, beside all that PyTorch does with backward and step."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.agent.training import Outcome, Training, digests, float_value, object_digest, tensor_digest
from tests.support import rest_slow, training_text, wait_until

pytestmark = pytest.mark.torch


def script(case: str) -> str:
    return training_text("pytorch_watched.py", case)


def load(training: Training, name: str) -> Any:
    import torch

    return torch.load(training.directory / name, weights_only=True)


def state_digests(state: dict[str, Any]) -> dict[str, str]:
    return {name: tensor_digest(tensor.numpy()) for name, tensor in state.items()}


@pytest.fixture(scope="module")
def epochs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, Outcome]:
    """A training whose model and optimizer are dead before the process ends."""
    training = Training(tmp_path_factory.mktemp("epochs"))
    return training, training.run(script("epochs"))


@pytest.mark.slow
def test_every_backward_is_a_loss(epochs: tuple[Training, Outcome]) -> None:
    training, outcome = epochs
    assert (outcome.status, outcome.output, outcome.errors) == (0, "done\n", "")
    losses = load(training, "end.pt")[0]
    lines = outcome.of("loss", name="loss")
    assert [line["step"] for line in lines] == list(range(12))
    assert [line["value"]["bits"] for line in lines] == [float_value("float32", loss)["bits"] for loss in losses]
    assert not outcome.of("warning")


@pytest.mark.slow
def test_epochs_are_those_of_the_loader_that_trains(epochs: tuple[Training, Outcome]) -> None:
    training, outcome = epochs
    losses = load(training, "end.pt")[0]
    lines = outcome.of("epoch")
    assert [(line["name"], line["epoch"], line["steps"]) for line in lines] == [("loader#0", n, 4) for n in range(3)]
    for number, line in enumerate(lines):
        mine = losses[4 * number : 4 * number + 4]
        assert line["values"]["loss"]["bits"] == float_value("float32", mine[-1])["bits"]
        assert line["values"]["mean_loss"] == float_value("float64", sum(mine) / 4)


def test_weights_of_every_epoch_and_of_the_end_are_those_saved(epochs: tuple[Training, Outcome]) -> None:
    training, outcome = epochs
    for number in range(3):
        state = state_digests(load(training, f"epoch{number}.pt"))
        line = outcome.one("weights", at="epoch", epoch=number, object="model#0")
        assert (line["class"], line["digest"]) == ("Net", object_digest(state))
    end = outcome.one("weights", at="end", object="model#0")
    assert digests(end) == state_digests(load(training, "end.pt")[1])
    assert end["digest"] == object_digest(digests(end))
    shapes = {name: (dtype, shape) for name, dtype, shape, _ in end["tensors"]}
    assert shapes["first.weight"] == ("float32", [8, 4])
    assert shapes["norm.num_batches_tracked"] == ("int64", [])


def test_the_optimizer_is_told_by_its_parameters_names(epochs: tuple[Training, Outcome]) -> None:
    training, outcome = epochs
    _, weights, state = load(training, "end.pt")
    names = [name for name in weights if "running" not in name and "num_batches" not in name]
    end = outcome.one("weights", at="end", object="optimizer#0")
    found = digests(end)
    for number, name in enumerate(names):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert found[f"{name}.{key}"] == tensor_digest(state["state"][number][key].numpy())
    text = {name: digest for name, dtype, _, digest in end["tensors"] if dtype == "text"}
    assert {"param_groups.0.lr", "param_groups.0.betas"} <= set(text)
    assert end["digest"] == object_digest(found)
    optimizer = outcome.one("optimizer")
    assert (optimizer["object"], optimizer["class"], optimizer["steps"]) == ("optimizer#0", "Adam", 12)


def test_random_states_end_the_run(epochs: tuple[Training, Outcome]) -> None:
    _, outcome = epochs
    assert {"random", "torch"} <= {line["name"] for line in outcome.of("random_state")}
    assert [line["name"] for line in outcome.of("framework")] == ["numpy", "torch"]
    assert outcome.lines[-1]["k"] == "end"


@pytest.mark.slow
def test_backwards_of_every_kind_count_once(training: Training) -> None:
    outcome = training.run(script("backwards"))
    assert (outcome.status, outcome.output) == (0, "torch.Size([32, 4])\nrefused\n")
    assert [line["step"] for line in outcome.of("loss")] == [0, 1, 2, 3, 5]
    (digest,) = outcome.of("log", name="loss")
    assert digest["step"] == 4
    assert digest["value"]["text"].startswith("sha256:")
    assert not outcome.of("warning")


@pytest.mark.slow
def test_compiled_training_works_and_is_seen(training: Training) -> None:
    outcome = training.run(script("compiled"))
    assert outcome.one("log", name="total")["value"]["dtype"] == "float32"
    assert (outcome.status, outcome.output) == (0, "done\n")
    assert len(outcome.of("loss")) == 9
    ends = [line["digest"] for line in outcome.of("weights", at="end") if line["object"].startswith("model")]
    saved = [object_digest(state_digests(load(training, f"{name}.pt"))) for name in ("model", "whole", "alone")]
    assert sorted(ends) == sorted(saved)
    assert len(outcome.of("optimizer")) == 3
    assert outcome.one("optimizer", **{"class": "SGD"})["steps"] == 3
    assert outcome.one("seed")["call"] == "torch.manual_seed"
    assert not outcome.of("warning")


@pytest.mark.slow
def test_models_and_optimizers_of_every_kind(training: Training) -> None:
    outcome = training.run(script("kinds"))
    assert (outcome.status, outcome.output) == (0, "done\n")
    assert not outcome.of("warning")
    tied, closures, free = load(training, "end.pt")
    assert len(outcome.of("loss")) == closures + 6
    ends = outcome.of("weights", at="end")
    models = {line["object"]: digests(line) for line in ends if line["object"].startswith("model")}
    kinds = [line["class"] for line in ends if line["object"] in models]
    assert sorted(kinds) == ["Module", "Net", "Net", "Net", "Net", "Sequential"]  # a scripted Net is owned by its Net
    assert state_digests(tied) in models.values()
    odd = next(found for found in models.values() if "sparse" in found)
    assert set(odd) == {"weight", "complex", "sparse", "quantized", "small", "flag"}
    import numpy

    assert odd["complex"] == tensor_digest(numpy.ones((3, 2), numpy.complex64).conj())
    assert odd["flag"] == tensor_digest(numpy.array(True))
    alone = [digests(line) for line in ends if "param_groups.0.params.0" in digests(line)]
    expected = tensor_digest(free.numpy()).replace("sha256:", "")
    assert len(alone) == 1
    assert alone[0]["param_groups.0.params.0"] != expected  # bfloat16 is another dtype than int16


@pytest.mark.slow
def test_gradient_free_and_function_scoped_models_do_not_live_longer(training: Training) -> None:
    outcome = training.run(script("scoped"))
    assert outcome.output == "[None, None, None, None]\n"
    kinds = [(line["k"], line.get("object")) for line in outcome.lines if line["k"] in ("weights", "optimizer")]
    assert kinds == [("weights", "model#0"), ("weights", "optimizer#0"), ("optimizer", "optimizer#0")] or kinds == [
        ("weights", "optimizer#0"),
        ("optimizer", "optimizer#0"),
        ("weights", "model#0"),
    ]


@pytest.mark.slow
def test_a_loader_that_is_made_anew_goes_on_counting_epochs(training: Training) -> None:
    outcome = training.run(script("loaders_anew"))
    assert [(line["name"], line["epoch"]) for line in outcome.of("epoch")] == [("loader#0", n) for n in range(3)]
    for number in range(3):
        line = outcome.one("weights", at="epoch", epoch=number, object="model#0")
        assert line["digest"] == object_digest(state_digests(load(training, f"epoch{number}.pt")))


@pytest.mark.slow
@pytest.mark.parametrize("case", rest_slow(["loaders_in_turn"], extended=["normed_loaders_in_turn"]))
def test_an_epoch_ends_where_another_loader_trains_though_its_own_lives_on(training: Training, case: str) -> None:
    outcome = training.run(script(case))
    assert [(line["name"], line["epoch"]) for line in outcome.of("epoch")] == [(f"loader#{n}", 0) for n in range(3)]
    numbers = [2] if "normed" in case else [0, 1, 2]  # whose statistics the next loader's first batch has changed
    expected = [object_digest(state_digests(load(training, f"loader{number}.pt"))) for number in numbers]
    assert [line["digest"] for line in outcome.of("weights", at="epoch", object="model#0")] == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", ["workers", pytest.param("spawned_workers", marks=pytest.mark.extended)])
def test_loader_workers_do_not_report_the_parents_models(training: Training, case: str) -> None:
    outcome = training.run(script(case))
    assert (outcome.status, outcome.output) == (0, "done\n")
    assert [line["epoch"] for line in outcome.of("epoch")] == [0, 1]
    assert len(outcome.of("weights", at="end")) == 2
    if case == "workers":
        assert {line["p"] for line in outcome.lines if line["k"] not in ("agent", "seed", "end")} == {"0"}
    assert not outcome.of("warning")


def test_losses_survive_a_kill(training: Training) -> None:
    process = training.start(script("endless"))
    wait_until(lambda: sum(line["k"] == "loss" for line in training.lines()) > 20, "twenty losses")
    process.send_signal(signal.SIGKILL)
    process.wait()
    losses = [line for line in training.lines() if line["k"] == "loss"]
    assert [line["step"] for line in losses] == list(range(len(losses)))


@pytest.mark.parametrize("case", rest_slow(["broken_at_the_end", "broken_at_every_step"]))
def test_a_failure_of_the_agent_is_never_the_trainings(training: Training, case: str) -> None:
    outcome = training.run(script(case))
    assert (outcome.status, outcome.output, outcome.errors) == (0, "done\n", "")
    assert outcome.lines[-1]["k"] == "end"
    assert outcome.of("warning")


@pytest.mark.slow
def test_signatures_and_names_stay(training: Training) -> None:
    watched = training.run(script("signatures"))
    assert watched.errors == ""
    assert watched.output == training.run_bare(script("signatures")).output


@pytest.mark.slow
def test_threads_that_train_are_told_apart(training: Training) -> None:
    outcome = training.run(script("threads"))
    assert (outcome.status, outcome.errors) == (0, "")
    for count in (1, 2, 3):
        thread = f"worker {count}"
        losses = sorted(outcome.of("loss", name=f"loss@{thread}"), key=lambda line: line["step"])
        assert [line["step"] for line in losses] == list(range(4 * count))
        assert [line["steps"] for line in outcome.of("epoch", name=f"loader@{thread}#0")] == [4] * count
        end = outcome.one("weights", at="end", object=f"model@{thread}#0")
        assert digests(end) == state_digests(load(training, f"{count}.pt"))
        assert outcome.one("optimizer", object=f"optimizer@{thread}#0")["steps"] == 4 * count
    assert not outcome.of("warning")
