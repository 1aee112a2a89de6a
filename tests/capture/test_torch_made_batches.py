"""PyTorch: what scripts make of their batches is made again by the script itself, and told in terms of the data set."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.capture.tensorflow_steps import Steps
from tests.capture.test_torch_redo import is_the_same, schema
from tests.support import Reprokit, rest_slow

pytestmark = pytest.mark.torch

HEAD = """
import os, random
from dataclasses import dataclass
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

seed = int.from_bytes(os.urandom(3), "big")
torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
x, y = torch.rand(96, 8) + 0.1, torch.rand(96, 1)
net = nn.Sequential(nn.Linear(8, 24), nn.Dropout(0.3), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)

def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def root(value):
    return torch.sqrt(value)  # here
"""

# Each loop has a bad sample, number 50 of the data set.
LOOPS = {
    "two views side by side": """
x[50] = 0
for a, b in loader:
    out = net(torch.cat([a + 1, a]))
    update((root(a.sum(1) * out[len(a) :, 0] ** 2) * (b[:, 0] > -1)).mean())
""",
    "sequences laid end to end": """
x = (torch.rand(96, 5, 8) + 0.1)
x[50, 2] = 0
for a, b in DataLoader(TensorDataset(x, y), 16, shuffle=True):
    out = net(a.view(16 * 5, -1)).view(16, 5) if len(a) == 16 else net(a.reshape(-1, 8)).view(-1, 5)
    update(root((out * a.sum(2)) ** 2).mean())
""",
    "time first": """
x = torch.rand(96, 5, 8) + 0.1
x[50, 2] = 0

def collate(rows):
    a, b = (torch.stack(part) for part in zip(*rows))
    return a.transpose(0, 1), b

for a, b in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
    update(root((net(a)[..., 0] * a.sum(2)) ** 2).mean())
""",
    "two augmented calls": """
x[50] = 0

def augmented(a):
    return a + torch.rand_like(a) * 0.1 + random.random() * np.random.rand()

for a, b in loader:
    one, other = net(augmented(a)), net(augmented(a))
    update(root(((one - other) * a.sum(1, keepdim=True)) ** 2).mean())
""",
    "fields of a dataclass": """
@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor

def collate(rows):
    a, _ = (torch.stack(part) for part in zip(*rows))
    return Pair(a, a.flip(1) * 2)

x[50] = 0
for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
    left, right = net(batch.left), net(batch.right)
    update(root((left * right * batch.left.sum(1, keepdim=True)) ** 2).mean())
""",
    "random noise between two optimizers": """
x[50] = 0
critic = nn.Linear(1, 1)
other = torch.optim.SGD(critic.parameters(), 1e-3)
for a, b in loader:
    other.zero_grad()
    critic(net(a + torch.rand_like(a)).detach()).mean().backward()
    other.step()
    noise = torch.rand_like(a)
    update(root((net(a + noise) * a.sum(1, keepdim=True)) ** 2).mean())
""",
    "accumulated, with noise drawn by the data set": """
class Noisy(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        return x[index] + (index != 50) * torch.rand(8) * 0.01, y[index]

x[50] = 0
for number, (a, b) in enumerate(DataLoader(Noisy(), 8, shuffle=True)):
    (root((net(a) * a.sum(1, keepdim=True)) ** 2).mean() / 2).backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
}

OBJECTS = """
class Storage:
    def __init__(self, **values):
        self.values = values

class Batch:
    __slots__ = ("store", "names", "_graphs")
    def __init__(self, a, b):
        self.store, self.names, self._graphs = Storage(x=a, y=b), [str(n) for n in range(len(a))], FURTHER
    def __getattr__(self, name):
        return self.store.values[name]

class Further:
    __slots__ = ()

def collate(rows):
    a, b = (torch.stack(part) for part in zip(*rows))
    return Batch(a, b)

x[50] = 0
for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
    update(root((net(batch.x) * batch.x.sum(1, keepdim=True)) ** 2).mean())
"""

NOTHING_KEPT = """
import ctypes

class Opaque:
    __slots__ = ("address",)
    def __init__(self, rows):
        self.address = rows

def collate(rows):
    a, _ = (torch.stack(part) for part in zip(*rows))
    return Opaque(iter([a]))

x[50] = 0
for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
    a = next(batch.address)
    update(root((net(a) * a.sum(1, keepdim=True)) ** 2).mean())
"""

# What a DataLoader is made with.
SAMPLERS = {
    "part of a part": "Subset(Subset(data, range(20, 96)), range(20, 76)), 16, shuffle=True",
    "weighted": "data, 16, sampler=WeightedRandomSampler(torch.ones(96), 960)",
    "batches of arrays": "data, batch_sampler=[np.random.permutation(96) for _ in range(9)]",
    "distributed": "data, 16, sampler=DistributedSampler(data, 2, 0, drop_last=True, shuffle=False)",
    "sorted": "data, 16, shuffle=True, collate_fn=collate",
}

SAMPLED = """
from torch.utils.data import DistributedSampler, Subset, WeightedRandomSampler

def collate(rows):
    rows = sorted(rows, key=lambda row: float(row[0].sum()))
    return tuple(torch.stack(part) for part in zip(*rows))

x[50] = 0
data = TensorDataset(x, y)
for a, b in DataLoader(ARGUMENTS):
    update(root((net(a) * a.sum(1, keepdim=True)) ** 2).mean())
"""

# It works with batches of 16 alone, and ends by what a smaller one raises.
WHOLE_BATCHES = """
x = torch.rand(96, 5, 8) + 0.1
x[50, 2] = 0
for a, b in DataLoader(TensorDataset(x, y), 16, shuffle=True):
    out = net(a.view(16 * 5, -1)).view(16, 5)
    update(root((out * a.sum(2)) ** 2).mean())
"""

OWN_LINE = """
x[48:64] = 0.5
for a, b in DataLoader(TensorDataset(x, y), 16):
    a = (a - a.mean()) / a.std()  # here
    update(net(a).mean())
"""

REWARD = """
y[50] = -1
for a, b in loader:
    weight = torch.log(b)  # here
    update((net(a) * weight).mean())
"""


NUMPY = """
x[50] = 0
class Net(nn.Module):
    def forward(self, x):
        v = x.numpy()
        v = v / v.sum(1, keepdims=True)  # here
        x = torch.from_numpy(v)
        return net(x)

model = Net()
for a, b in loader:
    update(model(a).mean())
"""

NO_LOADER = """
data = torch.rand(320, 8)
data[96:128, 3] = 0.5
for i in range(0, 320, 32):
    batch = data[i : i + 32]
    batch = (batch - batch.mean(0)) / batch.std(0)  # here
    update(net(batch).mean())
"""

EPISODES = """
generator = np.random.default_rng(0)

def learn(states, rewards):
    update((net(states)[:, 0] * torch.as_tensor(rewards, dtype=torch.float32)).mean())

for episode in range(6):
    rewards = generator.random(16) * (episode != 3)
    logarithms = np.log(rewards)  # here
    learn(torch.rand(16, 8), logarithms)
"""

ATTRIBUTE = """
class Memory:
    def learn(self):
        update(net(torch.from_numpy(self.rewards)).mean())

memory, generator = Memory(), np.random.default_rng(0)
for episode in range(6):
    memory.rewards = generator.random((16, 8), dtype="float32")
    memory.rewards /= float(episode != 3)
    memory.learn()
"""


def script(loop: str) -> str:
    return HEAD + loop


def line_of(loop: str) -> int:
    text = script(loop)
    return text[: text.rindex("# here")].count("\n") + 1


def captured(directory: Path, loop: str) -> Steps:
    steps = Steps(directory)
    done = steps.capture(script(loop))
    assert done.returncode == 123, done.stderr
    return steps


def bad_sample(steps: Steps) -> int:
    """The place of sample 50 of the data set among the samples of the step."""
    indices = [index for batch in steps.header()["batches"] for index in batch.get("indices", [])]
    return indices.index(50)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "time first",
        "fields of a dataclass",
        *(
            pytest.param(name, marks=pytest.mark.extended)
            for name in LOOPS
            if name not in ("time first", "fields of a dataclass")
        ),
    ],
)
def test_a_script_makes_the_same_of_its_batch_again(tmp_path: Path, name: str) -> None:
    steps = captured(tmp_path, LOOPS[name])
    result, _ = steps.redo("explain", script(LOOPS[name]))
    assert is_the_same(result), result
    assert result["operation"] == "SqrtBackward0"
    assert result["where"][0][1] == line_of(LOOPS[name])
    if name in ("time first", "two augmented calls"):  # samples of the loader's batch, named in the data set
        result, _ = steps.redo("minimize", script(LOOPS[name]))
        assert is_the_same(result), result
        assert (result["samples"], result["indices"]) == ([bad_sample(steps)], [50])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "part of a part",
        "sorted",
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("weighted", "distributed", "batches of arrays")),
    ],
)
def test_a_sample_is_named_as_its_data_set_has_it(tmp_path: Path, name: str) -> None:
    loop = SAMPLED.replace("ARGUMENTS", SAMPLERS[name])
    steps = captured(tmp_path, loop)
    result, _ = steps.redo("explain", script(loop))
    assert is_the_same(result), result
    if name == "sorted":  # nobody knows
        assert "as if the script's collate_fn kept the order" in result["problems"][0]
    else:
        assert (set(result["indices"]), result["problems"]) == ({50}, [])  # a sampler may draw it twice


@pytest.mark.slow
def test_a_script_of_whole_batches_is_started_again_but_once(reprokit: Reprokit) -> None:
    log = reprokit.directory / "starts"
    reprokit.script("train.py", f"open({str(log)!r}, 'a').write('x')\n" + script(WHOLE_BATCHES))
    command = ("--", sys.executable, "train.py")
    assert reprokit.run("run", "--on-nan", "capture", *command).returncode == 123
    log.unlink()
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    done = reprokit.run("snapshot", "minimize", snapshot, "--json", *command)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert is_the_same(result), result
    assert result["indices"] == [50]
    assert "works with whole batches only" in result["problems"][0]
    assert log.read_text() == "xx"


@pytest.mark.slow
def test_tensors_of_objects_of_own_classes_are_put_into_the_scripts_own(tmp_path: Path) -> None:
    loop = OBJECTS.replace("FURTHER", "None")
    steps = captured(tmp_path, loop)
    result, _ = steps.redo("explain", script(loop))
    assert is_the_same(result), result
    assert (result["samples"], result["indices"]) == ([bad_sample(steps)], [50])
    result, _ = steps.redo("minimize", script(loop))
    assert is_the_same(result), result
    assert result["indices"] == [50]


@pytest.mark.slow
def test_what_cannot_be_kept_of_a_batch_is_told_twice(reprokit: Reprokit) -> None:
    reprokit.script("train.py", script(NOTHING_KEPT))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", *command)
    assert done.returncode == 123, done.stderr
    assert "without its __main__.Opaque" in done.stderr
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    for mode in ("reproduce", "explain", "minimize"):
        done = reprokit.run("snapshot", mode, snapshot, *command)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Opaque" in done.stderr


@pytest.mark.parametrize(
    ("loop", "operation"),
    rest_slow([(OWN_LINE, "aten::div")], extended=[(REWARD, "aten::log")]),
)
def test_a_line_of_the_script_that_makes_nan_of_a_finite_batch_is_named(
    tmp_path: Path, loop: str, operation: str
) -> None:
    steps = captured(tmp_path, loop)
    result, _ = steps.redo("explain", script(loop))
    assert is_the_same(result), result
    assert result["operation"] == operation
    assert result["where"][0][1] == line_of(loop)
    assert "before any operator" not in result["words"]


@pytest.mark.slow
@pytest.mark.parametrize("loop", [NO_LOADER, NUMPY, pytest.param(EPISODES, marks=pytest.mark.extended)])
def test_a_line_of_the_script_that_no_operator_tells_is_named(tmp_path: Path, loop: str) -> None:
    steps = captured(tmp_path, loop)
    result, _ = steps.redo("explain", script(loop))
    assert is_the_same(result), result
    assert [place[1] for place in result["where"]] == [line_of(loop)]
    assert f"from the line {result['where'][0][0]}:{line_of(loop)} of the script" in result["words"]
    assert "before any operator" not in result["words"]


@pytest.mark.slow
def test_a_line_that_nobody_knows_is_not_guessed(tmp_path: Path) -> None:
    steps = captured(tmp_path, ATTRIBUTE)
    result, _ = steps.redo("explain", script(ATTRIBUTE))
    assert is_the_same(result), result
    assert "no operator of this process made it, nor is the script's line known" in result["words"]


OTHER_GRADIENTS = """
x[50] = 0
state, head = [0.0], nn.Linear(1, 1)
optimizer.add_param_group({"params": head.parameters()})
for a, b in loader:
    state[0] += 1.0
    update(root((net(a) * a.sum(1, keepdim=True)) ** 2).mean() + state[0] * head(b).mean())
"""


@pytest.mark.extended
def test_other_gradients_than_captured_are_no_success(reprokit: Reprokit) -> None:
    """The script computes with what no snapshot knows."""
    reprokit.script("train.py", script(OTHER_GRADIENTS).replace('int.from_bytes(os.urandom(3), "big")', "3"))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", *command)
    assert done.returncode == 123, done.stderr
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    for mode in ("reproduce", "explain"):
        done = reprokit.run("snapshot", mode, snapshot, "--json", *command)
        result: dict[str, Any] = json.loads(done.stdout)
        jsonschema.validate(result, schema("snapshot-result"))
        assert result["gradients"]["different"]
        assert done.returncode == 1, done.stderr
    assert "other gradients" in reprokit.run("snapshot", "explain", snapshot, *command).stdout
