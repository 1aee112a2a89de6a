"""Trainings that a script guards by itself: their states are compared where they are made.

python pytorch_guarded.py DIRECTORY
"""

import copy
import sys
import threading
from pathlib import Path

import torch
from torch import nn

import reprokit.capture
from reprokit.agent.capture.torch_finite import FiniteTests

DIRECTORY = Path(sys.argv[1])


def batch(step, value=1.0):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 4, generator=generator)
    x[0] = value
    return x, torch.randint(0, 2, (8,), generator=generator)


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def step(model, optimizer, x, y, factor=1.0):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y) * factor
    loss.backward()
    optimizer.step()
    return loss


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in other)


def restores():
    """A snapshot makes another model and optimizer what these were, so that the step is the same once more."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    directory = DIRECTORY / "restores"
    with reprokit.capture.guard(model, optimizer, directory=directory, on_nan="skip", capture_when=["loss>50"]):
        for number in range(5):
            step(model, optimizer, *batch(number))
            schedule.step()
        before, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        step(model, optimizer, *batch(5, float("inf")))
        assert same(model.state_dict(), before), "the step was applied, or its buffers were left"
        for number in range(2):
            step(model, optimizer, *batch(6 + number))
        step(model, optimizer, *batch(8), factor=1e4)
    step(model, optimizer, *batch(9, float("inf")))  # nobody watches any more
    first, second = sorted(directory.iterdir())
    assert [path.name for path in (first, second)] == ["step-00000005", "step-00000008"]
    snapshot = reprokit.capture.load(first)
    other = network()
    others = torch.optim.Adam(other.parameters(), 0.5)
    assert snapshot.restore(other, others) == []
    assert same(other.state_dict(), before)
    assert others.state_dict()["param_groups"][0]["lr"] == state["param_groups"][0]["lr"]
    assert all(same(others.state_dict()["state"][n], state["state"][n]) for n in state["state"])
    again = [torch.tensor(array) for array in (snapshot.batches[0][0][0], snapshot.batches[1]["target"])]
    loss = nn.functional.cross_entropy(other(again[0]), again[1])
    loss.backward()
    from reprokit.agent.capture.torch_state import digest

    digests = {name: digest(parameter.grad) for name, parameter in other.named_parameters()}
    assert digests == snapshot.header["gradient_digests"]
    assert digest(loss) == snapshot.header["loss"]["digest"]
    assert reprokit.capture.load(second).header["trigger"]["what"] == "loss>50"
    refuses(snapshot)


def refuses(snapshot):
    """Another model is left what it is."""
    for other, words in [
        (nn.Sequential(*list(network())[:3], nn.Linear(8, 3)), ["3.weight", "[2, 8]", "[3, 8]"]),
        (nn.Linear(4, 8), ["0.weight"]),
    ]:
        before = copy.deepcopy(other.state_dict())
        said = ""
        try:
            snapshot.restore(other)
        except reprokit.capture.BadSnapshot as error:
            said = str(error)
        assert said, "it was restored"
        assert all(word in said for word in words), said
        assert same(other.state_dict(), before)


def rolls_back(every=100, back=0):
    """The first copy is of the start."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    before = []
    options = {"directory": DIRECTORY / f"rolls_back-{every}", "on_nan": "rollback", "rollback_every": every}
    with reprokit.capture.guard(model, optimizer, **options):
        for number in range(3):
            before.append(copy.deepcopy(model.state_dict()))
            step(model, optimizer, *batch(number))
        assert not same(model.state_dict(), before[back])
        step(model, optimizer, *batch(3, float("nan")))
        assert same(model.state_dict(), before[back])
        assert bool(optimizer.state) == bool(back)
        step(model, optimizer, *batch(4))
        assert not same(model.state_dict(), before[back])


def rolls_back_less():
    rolls_back(every=2, back=2)


def rolls_back_its_own():
    """A thread goes back to a state of its own model, and leaves another thread's training alone."""
    models = [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    before, directory = copy.deepcopy(models[1].state_dict()), DIRECTORY / "rolls_back_its_own"

    def train(number, values):
        for place, value in enumerate(values):
            step(models[number], optimizers[number], *batch(place, value))

    with reprokit.capture.guard(nn.ModuleList(models), optimizers, directory=directory, on_nan="rollback"):
        for number, values in enumerate([(1.0, 1.0, 1.0), (1.0, 1.0, float("nan"))]):
            thread = threading.Thread(target=train, args=(number, values))
            thread.start()
            thread.join()
            if number == 0:
                trained = copy.deepcopy(models[0].state_dict())
    assert same(models[0].state_dict(), trained)
    assert same(models[1].state_dict(), before)


def reads_once():
    """Optimizers that apply gradients of one backward pass need one test in a step, which a GPU would wait for."""
    tests, test, model = [], FiniteTests.are_finite, network()

    def are_finite(self, tensors):
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found = test(self, tensors)
        tests.extend([found] * any(one is gradient for one in tensors for gradient in gradients))
        return found

    FiniteTests.are_finite = are_finite
    try:
        optimizers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in model if list(layer.parameters())]
        assert len(optimizers) == 3
        with reprokit.capture.guard(model, optimizers, directory=DIRECTORY / "reads_once"):
            for number in range(3):
                nn.functional.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
                for optimizer in optimizers:
                    optimizer.step()
    finally:
        FiniteTests.are_finite = test
    assert tests == [True] * 3, tests


def notices():
    """Activations that are not finite are named, a jump of the gradients too, and a scale that has no end."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Identity(), nn.Softplus()), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    directory, conditions = DIRECTORY / "notices", ["activations", "gradient-jump>20"]
    with reprokit.capture.guard(model, optimizer, directory=directory, on_nan="skip", capture_when=conditions):
        for number in range(15):
            step(model, optimizer, *batch(number))
        step(model, optimizer, *batch(15), factor=1e3)
        step(model, optimizer, *batch(16, float("inf")))
    jump, activation = [reprokit.capture.load(path).header["trigger"] for path in sorted(directory.iterdir())]
    assert (jump["kind"], jump["what"]) == ("condition", "gradient-jump>20"), jump
    assert (activation["kind"], activation["name"]) == ("activation", "0"), activation


def notices_each():
    """A jump of an optimizer's gradients is one beside its own mean, not beside another's much larger gradients."""
    models = [nn.Linear(4, 2), nn.Linear(4, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), 1e-6) for model in models]
    directory = DIRECTORY / "notices_each"
    options = {"directory": directory, "on_nan": "skip", "capture_when": ["gradient-jump>20"]}
    with reprokit.capture.guard(nn.ModuleList(models), optimizers, **options):
        for number in range(15):
            for model, optimizer, factor in zip(models, optimizers, (1e4, 1e2 if number == 13 else 1), strict=True):
                step(model, optimizer, *batch(number), factor=factor)
    (path,) = directory.iterdir()
    header = reprokit.capture.load(path).header
    assert (header["step"], header["trigger"]["optimizers"]) == (13, ["optimizer#1"]), header["trigger"]


def scale_falls():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    directory = DIRECTORY / "scale_falls"
    with reprokit.capture.guard(model, optimizer, directory=directory, on_nan="skip", max_snapshots=1):
        for number in range(12):
            optimizer.zero_grad()
            (
                scaler.scale(nn.functional.cross_entropy(model(batch(number)[0]), batch(number)[1])) * 1e38 * 10
            ).backward()
            scaler.step(optimizer)
            scaler.update()
    (path,) = directory.iterdir()
    header = reprokit.capture.load(path).header
    assert "scale" in header["trigger"]["what"], header["trigger"]
    assert header["gradients"]


def main():
    torch.set_num_threads(1)
    for check in (
        restores,
        rolls_back,
        rolls_back_less,
        rolls_back_its_own,
        reads_once,
        notices,
        notices_each,
        scale_falls,
    ):
        torch.manual_seed(3)
        check()
        print(check.__name__)


main()
