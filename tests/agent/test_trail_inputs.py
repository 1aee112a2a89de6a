"""What models are called with, in the trail of a training by PyTorch: which calls count, and which arguments."""

from __future__ import annotations

from typing import Any

import pytest

from reprokit.trails import TrailStep
from tests import trails
from tests.agent.test_trail import Cases
from tests.support import training_text

pytestmark = pytest.mark.torch

SMALL = (
    training_text("pytorch_small.py")
    + """
import copy, dataclasses
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint
"""
)

PLAIN = "steps(lambda number, a, b: mse_loss(model(a), b))"

# Each comes to a step 1 that differs by `variant` in what a model is called with, and in nothing of the batch.
DIFFERING = {
    "made": "steps(lambda number, a, b: mse_loss(model(a + variant * (number == 1)), b))",
    "in place": "steps(lambda number, a, b: mse_loss(model(a.clone().add_(variant * (number == 1))), b))",
    "twice": """
steps(lambda number, a, b: mse_loss(model(a) + model(a.flip(0) + variant * (number == 1)), b))
""",
    "packed": """
@dataclasses.dataclass
class Views:
    one: torch.Tensor
    more: dict

class Slots:
    __slots__ = ("views", "name")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, slots, scale, name=""):
        return self.inner(slots.views.one) + scale * self.inner(slots.views.more["two"][0])

def compute(number, a, b, net=Net()):
    slots = Slots()
    slots.views, slots.name = Views(a, {"two": (a * 2 + variant * (number == 1),)}), object()
    return mse_loss(net(slots, 0.5, name=str(id(slots))), b)

steps(compute)
""",
    "number": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, value, scale):
        return self.inner(value) * scale

net = Net()
steps(lambda number, a, b: mse_loss(net(a, scale=1.5 + variant * (number == 1)), b))
""",
    "leaf": """
def compute(number, a, b):
    attack = torch.full_like(a, variant * (number == 1)).requires_grad_()
    (gradient,) = torch.autograd.grad(mse_loss(model(attack), b), attack)
    return mse_loss(model(a + gradient), b)

steps(compute)
""",
    "frozen": """
frozen = nn.Linear(4, 4).requires_grad_(False)
steps(lambda number, a, b: mse_loss(model(frozen(a + variant * (number == 1))), b))
""",
    "nested": """
import warnings
warnings.simplefilter("ignore")  # nested tensors are a prototype
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, value):
        return self.inner(torch.cat(value.unbind()))

def compute(number, a, b, net=Net()):
    return mse_loss(net(torch.nested.nested_tensor([a[:3], a[3:] + variant * (number == 1)])), b)

steps(compute)
""",
    "scripted": """
scripted = torch.jit.script(model)
steps(lambda number, a, b: mse_loss(scripted(a + variant * (number == 1)), b))
""",
    "compiled": """
compiled = torch.compile(model, backend="eager")
steps(lambda number, a, b: mse_loss(compiled(a + variant * (number == 1)), b))
""",
    "replicas": """
import os
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
replica = nn.parallel.DistributedDataParallel(model)
steps(lambda number, a, b: mse_loss(replica(a + variant * (number == 1)), b))
torch.distributed.destroy_process_group()
""",
}

# Each is called with what PLAIN is called with, as far as it counts.
EQUAL = {
    "again": PLAIN,
    "views": "steps(lambda number, a, b: mse_loss(model(a.view(2, 4, 4).view(8, 4)), b))",
    "in memory": "steps(lambda number, a, b: mse_loss(model(a), b), between=lambda number, a: a.zero_())",
    "criterion": "criterion = nn.MSELoss()\nsteps(lambda number, a, b: criterion(model(a), b))",
    "recomputed": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, value):
        value = checkpoint(self.inner[0], value, use_reentrant=False)
        return self.inner[2](checkpoint(self.inner[1], value, use_reentrant=True))

net = Net()
steps(lambda number, a, b: mse_loss(net(a), b))
""",
    "in the data": """
class Data(torch.utils.data.Dataset):
    net = nn.Linear(4, 4)
    def __len__(self): return len(x)
    def __getitem__(self, index):
        self.net(torch.rand(4))
        return x[index], y[index]

loader = DataLoader(Data(), 8)
"""
    + PLAIN,
    "traced": """
def compute(number, a, b):
    torch.jit.trace(copy.deepcopy(model), a + 1, check_trace=False)
    return mse_loss(model(a), b)

steps(compute)
""",
}

# Each is called with what PLAIN is called with, and with what does not count.
PARTIAL = {
    "evaluated": """
def compute(number, a, b):
    if number == 1:
        with torch.no_grad():
            model(a + 1)
    return mse_loss(model(a), b)

steps(compute)
""",
    "chained": "steps(lambda number, a, b: mse_loss(model(a) + model(model(a) + a), b))",
    "transformed": """
from torch.func import functional_call, vmap
def compute(number, a, b):
    functional_call(model, dict(model.named_parameters()), a)
    vmap(lambda row: model(row + 1))(a)
    return mse_loss(model(a), b)

steps(compute)
""",
}

OPTIONS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, value, options):
        return self.inner(value) * (2 if options else 1)

net = Net()
steps(lambda number, a, b: mse_loss(net(a, OPTIONS), b))
"""
PARTIAL |= {
    "number within": OPTIONS.replace("OPTIONS", "{'scale': 1.5}"),
    "text": OPTIONS.replace("OPTIONS", "'mean'"),
}

UNSEEN = {
    "whole step": """
compiled = torch.compile(lambda a, b: mse_loss(model(a), b), backend="eager", fullgraph=True)
steps(lambda number, a, b: compiled(a, b))
""",
    "functional": "w = nn.Parameter(torch.ones(4, 1))\nsteps(lambda number, a, b: mse_loss(a @ w, b), [w])",
}

GAN = """
generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
for number, (a, b) in enumerate(loader):
    noise = torch.arange(16.0).view(8, 2) / 16
    fake = generator(noise + variant * (number == 1))
    of_critic.zero_grad()
    (critic(fake.detach()) - critic(a)).mean().backward()
    of_critic.step()
    of_generator.zero_grad()
    (-critic(fake)).mean().backward()
    of_generator.step()
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """All cases."""
    scripts = {"plain": PLAIN, **EQUAL, **PARTIAL, **UNSEEN}
    for name, script in {**DIFFERING, "gan": GAN}.items():
        scripts.update({f"{name} {value}": f"variant = {value}\n{script}" for value in (0, 1)})
    scripts["reshaped"] = "steps(lambda number, a, b: mse_loss(model(a.view(4, 2, 4)).view(8, 1), b))"
    scripts["made again"] = "variant = 1\n" + DIFFERING["made"]
    return Cases(tmp_path_factory.mktemp("cases"), {name: SMALL + script for name, script in scripts.items()})


def inputs(steps: list[TrailStep]) -> list[int | None]:
    return [step.inputs for step in steps]


def flags(steps: list[TrailStep]) -> set[tuple[bool, bool]]:
    """Whether something does not count, and whether one call that counts came after another."""
    return {(step.inputs_partial, step.inputs_several) for step in steps}


@pytest.mark.parametrize("name", DIFFERING)
def test_what_differs_shows_at_its_step_and_not_in_the_batch(cases: Cases, name: str) -> None:
    left, right = cases.steps(f"{name} 0", f"{name} 1")
    assert None not in inputs(left)
    assert [a.inputs == b.inputs for a, b in zip(left[:2], right, strict=False)] == [True, False]
    assert [step.batch for step in left] == [step.batch for step in right]
    assert [step.torch for step in left] == [step.torch for step in right]
    assert left[1].parameters != right[1].parameters


def test_equal_runs_are_called_with_the_same(cases: Cases) -> None:
    left, right = cases.steps("made 1", "made again")
    assert inputs(left) == inputs(right)
    assert flags(left) == {(False, False)}


@pytest.mark.parametrize("name", EQUAL)
def test_what_is_no_input_of_a_model_does_not_count(cases: Cases, name: str) -> None:
    left, right = cases.steps("plain", name)
    assert inputs(left) == inputs(right)
    assert flags(right) == {(False, False)}


@pytest.mark.parametrize("name", PARTIAL)
def test_what_does_not_count_is_said(cases: Cases, name: str) -> None:
    left, right = cases.steps("plain", name)
    assert (True, False) in flags(right) or (True, True) in flags(right)
    assert None not in inputs(right)
    if name == "evaluated":
        assert inputs(left) == inputs(right)
        assert [step.inputs_partial for step in right] == [False, True, False]


@pytest.mark.parametrize("name", UNSEEN)
def test_what_was_not_seen_is_not_known(cases: Cases, name: str) -> None:
    (steps,) = cases.steps(name)
    assert inputs(steps) == [None] * 3


def test_the_value_is_that_of_the_definition(cases: Cases) -> None:
    plain, made, reshaped = cases.steps("plain", "made 0", "reshaped")

    def folded(salt: int, data: bytes = b"") -> int:
        return trails.mix(trails.digest_of_bytes(data, salt))

    salt = trails.salt("float32", (8, 4))
    assert inputs(plain) == [folded(1)] * 3  # the first tensor of the batch
    batch: Any = __import__("torch")
    batch.manual_seed(7)
    x = batch.randn(24, 4)
    assert inputs(made) == [folded(salt, x[at : at + 8].numpy().tobytes()) for at in (0, 8, 16)]
    assert inputs(reshaped) == [folded(trails.salt("float32", (4, 2, 4)) + 1)] * 3


def test_each_model_of_a_pair_has_its_inputs(cases: Cases) -> None:
    series = [{one.name: list(one.steps()) for one in cases.trail(f"gan {value}").series} for value in (0, 1)]
    left, right = series
    critic, generator = ([a.inputs == b.inputs for a, b in zip(left[n], right[n], strict=True)] for n in sorted(left))
    assert critic == [True, False, False]  # as the generator learned something else
    assert None not in inputs(left["optimizer#0"])
    assert flags(left["optimizer#0"]) == {(False, True)}
    assert flags(left["optimizer#1"]) == {(True, False)}
    assert generator == [True, True, True]


def test_nothing_is_said(cases: Cases) -> None:
    assert cases.outcome.errors == ""
    assert [line["text"] for line in cases.outcome.of("warning")] == []
