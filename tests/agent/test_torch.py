"""PyTorch: every loss, optimizer step, epoch and digest, beside all that PyTorch does with backward and step."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.agent.training import Outcome, Training, digests, float_value, object_digest, tensor_digest
from tests.support import rest_slow, wait_until

pytestmark = pytest.mark.torch

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 1)
    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))

x, y = torch.randn(32, 4), torch.randn(32, 1)

def step(model, optimizer, closure_only=False):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss
    return closure if closure_only else (closure(), optimizer.step())[0]
"""

EPOCHS = """
def main():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train, valid = (DataLoader(TensorDataset(x, y), 8, shuffle=True) for _ in range(2))
    losses = []
    for epoch in range(3):
        for a, b in train:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == 6:  # validation in the middle of an epoch
                [model(a) for a, b in valid]
        for a, b in valid:
            model(a)
        scheduler.step()
        torch.save(model.state_dict(), f"epoch{epoch}.pt")
    torch.save((losses, model.state_dict(), optimizer.state_dict()), "end.pt")

main()
print("done")
"""


def load(training: Training, name: str) -> Any:
    import torch

    return torch.load(training.directory / name, weights_only=True)


def state_digests(state: dict[str, Any]) -> dict[str, str]:
    return {name: tensor_digest(tensor.numpy()) for name, tensor in state.items()}


@pytest.fixture(scope="module")
def epochs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, Outcome]:
    """A training whose model and optimizer are dead before the process ends."""
    training = Training(tmp_path_factory.mktemp("epochs"))
    return training, training.run(HEAD + EPOCHS)


def test_every_backward_is_a_loss(epochs: tuple[Training, Outcome]) -> None:
    training, outcome = epochs
    assert (outcome.status, outcome.output, outcome.errors) == (0, "done\n", "")
    losses = load(training, "end.pt")[0]
    lines = outcome.of("loss", name="loss")
    assert [line["step"] for line in lines] == list(range(12))
    assert [line["value"]["bits"] for line in lines] == [float_value("float32", loss)["bits"] for loss in losses]
    assert not outcome.of("warning")


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
    outcome = training.run(
        HEAD
        + """
from torch.utils.checkpoint import checkpoint
w = torch.ones(3, requires_grad=True)
(w ** 3).sum().backward(create_graph=True)
w.grad.sum().backward()
assert w.grad.tolist() == [9.0, 9.0, 9.0]
checkpoint(lambda t: (t * t).sin(), w, use_reentrant=True).sum().backward()
torch.autograd.backward([w.sum(), (w * 2).sum()])
w.grad = None
(w * 2).backward(torch.ones(3))
assert w.grad.tolist() == [2.0, 2.0, 2.0]
torch.autograd.grad(w.sum(), w)
print(torch.func.grad(lambda t: (t ** 2).sum())(x).shape)
try:
    torch.ones(1).backward()
except RuntimeError as error:
    print("refused")
"""
    )
    assert (outcome.status, outcome.output) == (0, "torch.Size([32, 4])\nrefused\n")
    assert [line["step"] for line in outcome.of("loss")] == [0, 1, 2, 3, 5]
    (digest,) = outcome.of("log", name="loss")
    assert digest["step"] == 4
    assert digest["value"]["text"].startswith("sha256:")
    assert not outcome.of("warning")


@pytest.mark.slow
def test_compiled_training_works_and_is_seen(training: Training) -> None:
    outcome = training.run(
        HEAD
        + """
model = Net()
compiled = torch.compile(model, backend="eager", fullgraph=True)
optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
for _ in range(3):
    step(compiled, optimizer)
torch.save(model.state_dict(), "model.pt")

whole = Net()
adam = torch.optim.Adam(whole.parameters())
@torch.compile(backend="eager")
def train():
    return step(whole, adam)
for _ in range(3):
    train()
torch.save(whole.state_dict(), "whole.pt")

alone = Net()
other = torch.optim.Adam(alone.parameters())
compiled_step = torch.compile(lambda: other.step(), backend="eager")
for _ in range(3):
    other.zero_grad()
    alone(x).sum().backward()
    compiled_step()
torch.save(alone.state_dict(), "alone.pt")
torch.manual_seed(3)

import reprokit
@torch.compile(backend="eager")
def logged():
    total = (x * 2).sum()
    reprokit.log(total=total)
    return total + 1
logged()
print("done")
"""
    )
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
    outcome = training.run(
        HEAD
        + """
import copy
closures = []
lbfgs_model = Net()
lbfgs = torch.optim.LBFGS(lbfgs_model.parameters(), max_iter=3)
closure = step(lbfgs_model, lbfgs, closure_only=True)
lbfgs.step(lambda: closures.append(1) or closure())

copied = copy.deepcopy(Net())
step(copied, torch.optim.AdamW([{"params": copied.first.parameters()}, {"params": copied.second.parameters()}]))

free = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
sgd = torch.optim.SGD([free], lr=0.1)
free.float().sum().backward()
sgd.step()

tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
tied[1].weight = tied[0].weight
tied_sgd = torch.optim.SGD(tied.parameters(), lr=0.1)
tied(x).sum().backward()
tied_sgd.step()

parallel = nn.DataParallel(Net())
parallel_sgd = torch.optim.SGD(parallel.parameters(), lr=0.1)
step(parallel, parallel_sgd)

scripted = torch.jit.script(Net())
scripted_sgd = torch.optim.SGD(scripted.parameters(), lr=0.1)
step(scripted, scripted_sgd)

scaler = torch.amp.GradScaler("cpu")
scaler.scale(nn.functional.mse_loss(parallel(x), y)).backward()
scaler.step(parallel_sgd)
scaler.update()

empty = nn.Module()
empty.weight = nn.Parameter(torch.ones(2, 0, 3))
empty.complex = nn.Parameter(torch.ones(2, 3, dtype=torch.complex64).t().conj())
empty.register_buffer("sparse", torch.eye(3).to_sparse())
empty.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 2, torch.quint8))
empty.register_buffer("small", torch.ones(2).to(torch.float8_e5m2))
empty.register_buffer("flag", torch.tensor(True))
empty_sgd = torch.optim.SGD(empty.parameters(), lr=0.1)
empty_sgd.step()

torch.save([dict(tied.state_dict()), len(closures), free.detach().view(torch.int16)], "end.pt")
print("done")
"""
    )
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
    outcome = training.run(
        HEAD
        + """
import gc, weakref
def train():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    return [weakref.ref(thing) for thing in (model, optimizer, model.first.weight, model.norm.running_mean)]
references = train()
gc.collect()
print([reference() for reference in references])
"""
    )
    assert outcome.output == "[None, None, None, None]\n"
    kinds = [(line["k"], line.get("object")) for line in outcome.lines if line["k"] in ("weights", "optimizer")]
    assert kinds == [("weights", "model#0"), ("weights", "optimizer#0"), ("optimizer", "optimizer#0")] or kinds == [
        ("weights", "optimizer#0"),
        ("optimizer", "optimizer#0"),
        ("weights", "model#0"),
    ]


@pytest.mark.slow
def test_a_loader_that_is_made_anew_goes_on_counting_epochs(training: Training) -> None:
    outcome = training.run(
        HEAD
        + """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), 8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    torch.save(model.state_dict(), f"epoch{epoch}.pt")
    for a, b in DataLoader(TensorDataset(x, y), 8): model(a)
"""
    )
    assert [(line["name"], line["epoch"]) for line in outcome.of("epoch")] == [("loader#0", n) for n in range(3)]
    for number in range(3):
        line = outcome.one("weights", at="epoch", epoch=number, object="model#0")
        assert line["digest"] == object_digest(state_digests(load(training, f"epoch{number}.pt")))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["nn.Linear(4, 1)", "nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))"])
def test_an_epoch_ends_where_another_loader_trains_though_its_own_lives_on(training: Training, model: str) -> None:
    outcome = training.run(
        HEAD
        + f"""
model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loaders = [DataLoader(TensorDataset(x, y), 8) for _ in range(3)]
for number, loader in enumerate(loaders):
    for a, b in loader:
        optimizer.zero_grad()
        model(a).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"loader{{number}}.pt")
"""
    )
    assert [(line["name"], line["epoch"]) for line in outcome.of("epoch")] == [(f"loader#{n}", 0) for n in range(3)]
    numbers = [2] if "Norm" in model else [0, 1, 2]  # whose statistics the next loader's first batch has changed
    expected = [object_digest(state_digests(load(training, f"loader{number}.pt"))) for number in numbers]
    assert [line["digest"] for line in outcome.of("weights", at="epoch", object="model#0")] == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.extended)])
def test_loader_workers_do_not_report_the_parents_models(training: Training, method: str) -> None:
    outcome = training.run(
        HEAD
        + f"""
def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), 8, num_workers=2, multiprocessing_context="{method}")
    for _ in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
    print("done")
if __name__ == "__main__":
    main()
"""
    )
    assert (outcome.status, outcome.output) == (0, "done\n")
    assert [line["epoch"] for line in outcome.of("epoch")] == [0, 1]
    assert len(outcome.of("weights", at="end")) == 2
    if method == "fork":
        assert {line["p"] for line in outcome.lines if line["k"] not in ("agent", "seed", "end")} == {"0"}
    assert not outcome.of("warning")


def test_losses_survive_a_kill(training: Training) -> None:
    process = training.start(
        HEAD + "model = Net()\nsgd = torch.optim.SGD(model.parameters(), lr=0.1)\nwhile True: step(model, sgd)"
    )
    wait_until(lambda: sum(line["k"] == "loss" for line in training.lines()) > 20, "twenty losses")
    process.send_signal(signal.SIGKILL)
    process.wait()
    losses = [line for line in training.lines() if line["k"] == "loss"]
    assert [line["step"] for line in losses] == list(range(len(losses)))


BROKEN = {
    "at the end": "torch.Tensor.data_ptr = torch.random.get_rng_state = torch.cuda.is_initialized = None",
    "at every step": "torch._C.DisableTorchFunction = torch.optim.Optimizer.__hash__ = None",
}


@pytest.mark.parametrize("way", rest_slow(BROKEN))
def test_a_failure_of_the_agent_is_never_the_trainings(training: Training, way: str) -> None:
    script = HEAD + f"{BROKEN[way]}\n" + "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    script += "loss = nn.functional.mse_loss(model(x), y)\nloss.backward()\noptimizer.step()\nprint('done')"
    outcome = training.run(script)
    assert (outcome.status, outcome.output, outcome.errors) == (0, "done\n", "")
    assert outcome.lines[-1]["k"] == "end"
    assert outcome.of("warning")


@pytest.mark.slow
def test_signatures_and_names_stay(training: Training) -> None:
    script = """
import inspect, pickle, torch
from torch.utils.data import DataLoader
for function in (torch.autograd.backward, torch.Tensor.backward, torch.optim.Optimizer.__init__, DataLoader.__iter__,
                 torch.manual_seed):
    print(function.__module__, function.__qualname__, inspect.signature(function))
assert pickle.loads(pickle.dumps(torch.autograd.backward)) is torch.autograd.backward
"""
    watched = training.run(script)
    assert watched.errors == ""
    assert watched.output == training.run_bare(script).output


@pytest.mark.slow
def test_threads_that_train_are_told_apart(training: Training) -> None:
    outcome = training.run(
        HEAD
        + """
import threading
def work(count):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), 8)
    for _ in range(count):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
    torch.save(model.state_dict(), f"{count}.pt")
threads = [threading.Thread(target=work, args=(count,), name=f"worker {count}") for count in (1, 2, 3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    )
    assert (outcome.status, outcome.errors) == (0, "")
    for count in (1, 2, 3):
        thread = f"worker {count}"
        losses = sorted(outcome.of("loss", name=f"loss@{thread}"), key=lambda line: line["n"])
        assert [line["step"] for line in losses] == list(range(4 * count))
        assert [line["steps"] for line in outcome.of("epoch", name=f"loader@{thread}#0")] == [4] * count
        end = outcome.one("weights", at="end", object=f"model@{thread}#0")
        assert digests(end) == state_digests(load(training, f"{count}.pt"))
        assert outcome.one("optimizer", object=f"optimizer@{thread}#0")["steps"] == 4 * count
    assert not outcome.of("warning")
