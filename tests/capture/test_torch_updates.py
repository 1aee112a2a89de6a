"""PyTorch: weights that an update ruins, whose gradients and loss were finite, and whose turn it is to update."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.capture import load
from tests.capture.tensorflow_steps import Steps
from tests.capture.test_torch_redo import is_the_same

pytestmark = pytest.mark.torch

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x, y = torch.rand(96, 8), torch.rand(96, 1)
net = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
"""

HALF = """
net.half()
optimizer = torch.optim.Adam(net.parameters(), eps=1e-8)
for a, b in DataLoader(TensorDataset(x.half(), y.half()), 16):
    optimizer.zero_grad()
    loss = (net(a) - b).square().mean() * 1e-3
    loss.backward()
    optimizer.step()
"""

LARGE_STEP = """
x[43, 0] = 7
optimizer = torch.optim.SGD(net.parameters(), 1e-6, momentum=0.9)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), 8)):
    optimizer.zero_grad()
    loss = 1000 * (net(a) - b).square().mean()
    loss.backward()
    optimizer.param_groups[0]["lr"] = 1e38 if (a > 6).any() else 1e-6
    optimizer.step()
"""

CLOSURE = """
x[43, 0] = 7
optimizer = torch.optim.SGD(net.parameters(), 1e-6, momentum=0.9)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), 8)):
    def closure():
        optimizer.zero_grad()
        loss = (net(a) - b).square().mean()
        loss.backward()
        return loss
    optimizer.param_groups[0]["lr"] = 1e38 if (a > 6).any() else 1e-6
    optimizer.step(closure)
"""

COMPILED = """
x[43, 0] = 7
optimizer = torch.optim.SGD(net.parameters(), torch.tensor(1e-6), momentum=0.9)
update = torch.compile(optimizer.step, backend="eager")
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), 8)):
    optimizer.zero_grad()
    loss = 1000 * (net(a) - b).square().mean()
    loss.backward()
    optimizer.param_groups[0]["lr"].fill_(1e38 if (a > 6).any() else 1e-6)
    update()
"""

# Parameters of a subclass are not copied before an update, as are none of a model beyond 256 MiB.
NOT_HELD = """
class Weight(nn.Parameter):
    pass

for module in net:
    for name, parameter in list(module.named_parameters()):
        setattr(module, name, Weight(parameter.data))
"""

ADVERSARIES = """
x[16 * WHEN + 3, 0] = 7
critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
other = torch.optim.SGD(critic.parameters(), lr=1e-2)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), 16)):
    other.zero_grad()
    (critic(b).mean() - critic(net(a).detach()).mean()).backward()
    other.step()
    optimizer.zero_grad()
    loss = critic(net(a)).mean() / (a[:, 0] < 7).all()
    loss.backward()
    optimizer.step()
"""


def captured(directory: Path, loop: str, width: int = 16) -> tuple[Steps, str]:
    script = (HEAD + loop).replace("WIDTH", str(width))
    steps = Steps(directory)
    done = steps.capture(script)
    assert done.returncode == 123, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return steps, script


@pytest.mark.parametrize(
    ("loop", "step"),
    [
        pytest.param(HALF, 0, id="half"),
        pytest.param(CLOSURE, 5, id="closure"),
        pytest.param(LARGE_STEP, 5, id="learning rate", marks=pytest.mark.slow),
        pytest.param(COMPILED, 5, id="compiled", marks=pytest.mark.slow),
    ],
)
def test_the_state_is_that_before_the_update(tmp_path: Path, loop: str, step: int) -> None:
    steps, script = captured(tmp_path, loop)
    header = steps.header()
    assert (header["step"], header["trigger"]["kind"]) == (step, "parameter")
    snapshot = load(steps.snapshots[0])
    assert all(numpy.isfinite(snapshot.tensors[name]).all() for name in snapshot.tensors if name.startswith("model."))
    assert "is not finite after the update" in snapshot.trigger
    result, _ = steps.redo("explain", script)
    assert is_the_same(result), result
    assert result["trigger"]["kind"] == "parameter"
    assert result["operation"]


@pytest.mark.slow
def test_of_a_large_model_an_earlier_state_is_kept(tmp_path: Path) -> None:
    steps, script = captured(tmp_path, LARGE_STEP, width=20_000)
    header = steps.header()
    assert (header["trigger"]["kind"], header["batches"]) == ("parameter", [])
    assert header["step"] + header["trigger"]["updates"] == 6
    assert "loss" in [trigger["kind"] for trigger in header["also"]]
    snapshot = load(steps.snapshots[0])
    assert all(numpy.isfinite(snapshot.tensors[name]).all() for name in snapshot.tensors if name.startswith("model."))
    result, _ = steps.redo("reproduce", script)
    assert "some updates before" in result["trouble"]


@pytest.mark.slow
def test_weights_that_were_ruined_before_the_step_are_told_as_such(tmp_path: Path) -> None:
    steps, script = captured(tmp_path, NOT_HELD + LARGE_STEP)
    header = steps.header()
    assert (header["step"], header["trigger"]["kind"], header["trigger"]["was_before"]) == (6, "parameter", True)
    assert "was not finite before the step" in load(steps.snapshots[0]).trigger
    result, _ = steps.redo("explain", script)
    assert is_the_same(result), result
    assert re.match(r"parameter \S+ was not finite before any operator worked on it", result["words"])


@pytest.mark.slow
@pytest.mark.parametrize("when", [0, 3])
def test_a_model_whose_turn_it_is_not_is_not_compared(tmp_path: Path, when: int) -> None:
    """The critic has gradients of its own step, and gets others of the generator's loss, which nobody applies."""
    steps, script = captured(tmp_path, ADVERSARIES.replace("WHEN", str(when)))
    header: dict[str, Any] = steps.header()
    names = [optimizer["name"] for optimizer in header["optimizers"]]
    assert header["trigger"]["optimizers"] == names[1:]
    assert header["step"] == when
    result, _ = steps.redo("reproduce", script)
    assert is_the_same(result), result
    assert result["gradients"]["equal"] == 4
