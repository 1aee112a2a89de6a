"""PyTorch: captured steps done again in the script that made them, on all and on parts of their batches."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reprokit.capture import load
from tests.capture.tensorflow_steps import Steps
from tests.support import Reprokit

pytestmark = pytest.mark.torch

# A sample of zeros, whose square root has no finite gradient. Each start has other weights and another order.
HEAD = """
import os, random, sys
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

seed = int.from_bytes(os.urandom(3), "big")
torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
x, y = torch.rand(96, 8) + 0.1, torch.rand(96, 1)
x[50] = 0
net = nn.Sequential(nn.Linear(8, UNITS, bias=False), nn.Dropout(0.3), nn.Tanh(), nn.Linear(UNITS, 1, bias=False))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)

def loss_of(out, target):
    return (torch.sqrt(out ** 2) - target).abs().mean()  # here
"""

ACCUMULATING = """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
net.eval()
with torch.no_grad():
    for a, b in loader:
        loss_of(net(a), b)
net.train()
for epoch in range(2):
    for number, (a, b) in enumerate(loader):
        (loss_of(net(a), b) / 3).backward()
        if number % 3 == 2:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
"""

NESTED = """
model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, UNITS), nn.Dropout(0.3))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

class Named(Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, index):
        return {"in": {"x": x[index], "name": "sample %d" % index}, "y": y[index, 0], "worker": random.random()}

while True:
    for batch in DataLoader(Named(), batch_size=16, shuffle=True, num_workers=1):
        names, rows = batch["in"]["name"], batch["in"]["x"]
        assert len(names) == len(batch["y"]) == len(batch["worker"])
        assert all((name == "sample 50") == (not bool(row.any())) for name, row in zip(names, rows))
        optimizer.zero_grad()
        try:
            loss_of(model(rows).sum(1) * rows.any(1), batch["y"]).backward()
        except ValueError:  # batch normalization refuses a single sample
            continue
        optimizer.step()
"""

CLOSURE = """
gain = nn.Parameter(torch.randn(8) * 0.1)  # of no module, and used before one is called
optimizer = torch.optim.LBFGS([*net.parameters(), gain], lr=1e-3, max_iter=3)
for epoch in range(2):
    for a, b in loader:
        def closure():
            optimizer.zero_grad()
            loss = loss_of(net(a * gain.exp()), b)
            loss.backward()
            return loss
        optimizer.step(closure)
"""

TWO_OPTIMIZERS = """
critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
other = torch.optim.SGD(critic.parameters(), lr=1e-2)
for epoch in range(2):
    for a, b in loader:
        other.zero_grad()
        (critic(b).mean() - critic(net(a).detach()).mean()).backward()
        other.step()
        optimizer.zero_grad()
        out = net(a)
        (critic(out).mean() + loss_of(out, b)).backward()
        optimizer.step()
"""

PARTS = """
from torch.utils.checkpoint import checkpoint

class Sharpness(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, 1e-2)

    def first_step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["old"] = parameter.detach().clone()
            parameter.data.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    def second_step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data = self.state[parameter]["old"]
        self.base.step()
        self.zero_grad()

optimizer = Sharpness(net.parameters())
for a, b in loader:
    torch.sqrt(checkpoint(net, a + 1, use_reentrant=False) ** 2).mean().backward()
    optimizer.first_step()
    loss_of(checkpoint(net, a, use_reentrant=False), b).backward()
    optimizer.second_step()
"""

COMPILED = """
@torch.compile(backend="eager")
def loss_at(a, b):
    return loss_of(net(a), b)

for a, b in loader:
    optimizer.zero_grad()
    loss_at(a, b).backward()
    optimizer.step()
"""

WITHOUT_LOADER = """
for step in range(40):
    rows = torch.randint(0, 96, (16,))
    optimizer.zero_grad()
    nn.functional.mse_loss(torch.sqrt(net(x[rows]) ** 2), y[rows]).backward()
    optimizer.step()
"""

BY_HAND = """
y = torch.where(torch.arange(96) == 50, -1.0, 1.0)[:, None]

class Odd(dict):
    def __len__(self):
        raise TypeError("nobody knows")

odd, ragged = Odd(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
gone, table = torch.ones(16), torch.eye(16).to_sparse_csr()
coded = torch.quantize_per_tensor(x[:16], 0.1, 0, torch.qint8)
gone.untyped_storage().resize_(0)

def forward(inputs, noise):
    return net(inputs) + noise

def batches():
    while True:
        rows = np.random.permutation(96)[:16]
        yield rows, {"of": [x[rows], "a text"]}

def train():
    for rows, batch in batches():
        noise = torch.rand(16, 1)
        optimizer.zero_grad()
        out = forward(batch["of"][0], noise)
        loss = (torch.sqrt(y[rows]) * out).mean()  # here
        loss.backward()
        optimizer.step()

train()
"""

COUNTED = """
y = torch.where(torch.arange(96) == 50, -1.0, 1.0)[:, None]
for start in range(0, 96, 16):
    optimizer.zero_grad()
    loss = (net(x[start : start + 16]) * torch.sqrt(y[start : start + 16])).mean()  # here
    loss.backward()
    optimizer.step()
"""

AFTER_A_LOADER = (
    """
for a, b in loader:
    optimizer.zero_grad()
    net(a).sum().backward()
    optimizer.step()
"""
    + COUNTED
)

TWO_LOADERS = """
class Changed(Dataset):
    def __len__(self):
        return 36
    def __getitem__(self, index):
        return torch.rand(8)

changed = iter(())
for a, b in loader:
    try:
        c = next(changed)
    except StopIteration:
        changed = iter(DataLoader(Changed(), batch_size=12))
        c = next(changed)
    optimizer.zero_grad()
    loss = loss_of(net(a), b) + net(c).square().mean()
    loss.backward()
    optimizer.step()
"""

# The loader is one batch ahead of the script, as that of Hugging Face's accelerate; an evaluation leaves gradients on.
AHEAD = """
def ahead(loader):
    iterator = iter(loader)
    batch = next(iterator)
    while batch is not None:
        now, batch = batch, next(iterator, None)
        yield now

others = DataLoader(TensorDataset(torch.rand(12, 8), torch.rand(12, 1)), 4)
for a, b in ahead(DataLoader(TensorDataset(x, y), 16)):
    optimizer.zero_grad()
    loss_of(net(a), b).backward()
    optimizer.step()
    net.eval()
    for c, d in others:
        loss_of(net(c), d)
    net.train()
"""

# Of such a dictionary any name can be asked, and is None, or none that it has not.
OWN_CLASSES = """
class Fields(dict):
    __getattr__ = dict.ACCESS

class Opaque:
    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, batch):
        return Fields(out=self.net(batch.a))

def collate(rows):
    a, b = (torch.stack(part) for part in zip(*rows))
    return Fields(a=a, b=b, other=Opaque())

model = Model()
for epoch in range(2):
    for batch in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, collate_fn=collate):
        optimizer.zero_grad()
        loss_of(model(batch).out, batch.b).backward()
        optimizer.step()
"""

RAGGED = """
def collate(rows):
    a, b = (torch.stack(part) for part in zip(*rows))
    return a, torch.nested.nested_tensor([b[:2], b[2:5], b[5:]], layout=torch.LAYOUT)

for epoch in range(2):
    for a, parts in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, collate_fn=collate):
        optimizer.zero_grad()
        loss_of(net(a), torch.cat(parts.unbind())).backward()
        optimizer.step()
"""

KEYWORDS = """
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, rows, mask=None):
        return torch.sqrt(self.net(rows) ** 2 * mask).mean()

model = Masked()
for step in range(40):
    rows, mask = torch.rand(16, 8), torch.ones(16, 1)
    mask[3] = step != 25
    optimizer.zero_grad()
    model(rows, mask=mask).backward()
    optimizer.step()
"""

SCALED = """
x[50] = 600
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (a.half()[:, :1] * a.half()[:, 1:2] * net(a)).mean()  # here
        scaler.scale(loss.float()).backward()
        scaler.step(optimizer)
        scaler.update()
"""

ENDING = """
for a, b in DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True):
    optimizer.zero_grad()
    loss = torch.log(net(a) ** 2).mean()  # here
    loss.backward()
    if not torch.isfinite(loss):
        raise ArithmeticError("the loss is not finite")
    optimizer.step()
"""

WHOLE = """
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        out = net(a)
        if len(a) == 16 and not bool(a.any(1).all()):
            out = out / 0
        out.mean().backward()
        optimizer.step()
"""


def script(loop: str, units: int = 24) -> str:
    """So many units that dropout never takes all of one sample's, which has no finite gradient either."""
    return (HEAD + loop).replace("UNITS", str(units))


def captured(directory: Path, loop: str) -> Steps:
    """A directory in which this loop has been captured."""
    steps = Steps(directory)
    done = steps.capture(script(loop))
    assert done.returncode == 123, done.stderr
    return steps


def line_of(loop: str) -> int:
    text = script(loop)
    return text[: text.rindex("# here")].count("\n") + 1


def is_the_same(result: dict[str, Any]) -> bool:
    """Whether loss and all gradients are bit for bit those of the snapshot."""
    gradients = result["gradients"]
    return bool(
        result["reproduced"]
        and result["loss"]["equal"]
        and gradients["equal"]
        and not gradients["different"]
        and gradients["nonfinite_equal"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop",
    [
        CLOSURE,
        pytest.param(TWO_OPTIMIZERS, marks=pytest.mark.extended),
        PARTS,
        pytest.param(WITHOUT_LOADER, marks=pytest.mark.extended),
        pytest.param(KEYWORDS, marks=pytest.mark.extended),
        pytest.param(COMPILED, marks=pytest.mark.extended),
    ],
    ids=["closure", "two optimizers", "a step in parts", "without a loader", "keywords", "a compiled function"],
)
def test_a_step_comes_to_the_same_bits_again(tmp_path: Path, loop: str) -> None:
    result, done = captured(tmp_path, loop).redo("reproduce", script(loop))
    assert is_the_same(result), result
    assert result["trigger"]["kind"] == "gradient"
    assert done.returncode == 0


@pytest.mark.slow
def test_a_batch_that_a_script_puts_together_is_found_in_its_variables(tmp_path: Path) -> None:
    """Some lie in a dictionary, some are computed behind the model, and some variables cannot be kept."""
    steps = captured(tmp_path, BY_HAND)
    assert set(steps.header()["batches"][-1]["value"]) == {"dict"}
    result, _ = steps.redo("explain", script(BY_HAND))
    assert is_the_same(result), result
    assert (result["trigger"]["kind"], result["operation"]) == ("loss", "aten::sqrt")
    assert result["where"][0][1] == line_of(BY_HAND)
    result, _ = steps.redo("minimize", script(BY_HAND))
    assert is_the_same(result), result
    rows = load(steps.snapshots[0]).batches[-1]["rows"]
    assert result["samples"] == [rows.tolist().index(50)]


@pytest.mark.extended
def test_what_a_loop_counts_chooses_the_same_samples_again(tmp_path: Path) -> None:
    steps = captured(tmp_path, COUNTED)
    assert steps.header()["loops"] == {"<module>": {"start": 48}}
    result, _ = steps.redo("explain", script(COUNTED))
    assert is_the_same(result), result
    assert (result["operation"], result["where"][0][1]) == ("aten::sqrt", line_of(COUNTED))
    result, _ = steps.redo("minimize", script(COUNTED))  # a part of them it does not choose
    assert not result["reproduced"]
    assert "what loops choose by their variables cannot be made smaller" in result["problems"][0]


@pytest.mark.extended
def test_what_a_loader_gave_before_its_end_is_of_no_step_after_it(tmp_path: Path) -> None:
    steps = captured(tmp_path, AFTER_A_LOADER)
    header = steps.header()
    assert [batch["from"] for batch in header["batches"]] == ["forward", "script"]
    assert header["epoch"] is None
    arguments, _ = load(steps.snapshots[0]).batches[0]
    assert not arguments[0][50 - 48].any()


@pytest.mark.slow
def test_a_step_of_two_loaders_has_samples_of_each(tmp_path: Path) -> None:
    """One of them begins anew in the middle of a step, which takes nothing from the other."""
    steps = captured(tmp_path, TWO_LOADERS)
    batches = steps.header()["batches"]
    assert [(batch["from"], batch["loader"], batch["samples"]) for batch in batches] == [
        ("loader", 0, 16),
        ("loader", 1, 12),
    ]
    shown = Reprokit(tmp_path).run("snapshot", "show", str(steps.snapshots[0])).stdout
    assert "from loader 0, 16 samples" in shown
    assert "from loader 1, 12 samples" in shown
    result, _ = steps.redo("minimize", script(TWO_LOADERS))
    assert is_the_same(result), result
    (row,) = rows_of_zeros(steps)
    assert result["samples"][0] == row
    assert (len(result["samples"]), result["of"], result["samples"][1] >= 16) == (2, 28, True)
    assert result["trials"] == len([line for line in steps.progress() if "text" in line])


@pytest.mark.extended
def test_a_batch_that_was_fetched_before_the_step_before(tmp_path: Path) -> None:
    """What is fetched next in a trial is of that trial, and so the script is started again for each."""
    steps = captured(tmp_path, AHEAD)
    (batch,) = load(steps.snapshots[0]).batches
    assert [len(part) for part in batch] == [16, 16]
    assert rows_of_zeros(steps) == [2]
    assert (steps.header()["epoch"], steps.header()["step"]) == (0, 3)
    (tmp_path / "train.py").write_text(script(AHEAD))
    training = sys.executable, "train.py"
    done = Reprokit(tmp_path).run("snapshot", "minimize", str(steps.snapshots[0]), "--json", "--", *training)
    result = json.loads(done.stdout)
    assert is_the_same(result), result
    assert (result["samples"], result["smallest"]) == ([2], True)


@pytest.mark.slow
@pytest.mark.parametrize("access", [pytest.param("get", marks=pytest.mark.extended), "__getitem__"])
def test_batches_of_classes_that_answer_to_any_name_or_fail_at_it(tmp_path: Path, access: str) -> None:
    loop = OWN_CLASSES.replace("ACCESS", access)
    (tmp_path / "train.py").write_text(script(loop))
    training = sys.executable, "train.py"
    reprokit = Reprokit(tmp_path)
    done = reprokit.run("record", "--on-nan", "capture", "--capture-when", "activations", "-o", "r", "--", *training)
    assert done.returncode == 123, done.stderr
    assert "warning" not in done.stderr
    (snapshot,) = (tmp_path / "r" / "snapshots").iterdir()
    shown = reprokit.run("snapshot", "show", str(snapshot)).stdout
    assert "batch        from loader, 16 samples, F32[16, 8], F32[16, 1], without its __main__.Opaque" in shown
    done = reprokit.run("snapshot", "minimize", str(snapshot), "--json", "--", *training)
    result = json.loads(done.stdout)
    assert is_the_same(result), result
    assert (len(result["samples"]), result["smallest"]) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [pytest.param("strided", marks=pytest.mark.extended), "jagged"])
def test_nested_tensors_of_a_batch(reprokit: Reprokit, layout: str) -> None:
    """Of which those that are strided have no shape; the trail has them, too."""
    (reprokit.directory / "train.py").write_text(script(RAGGED.replace("LAYOUT", layout)))
    training = [sys.executable, "train.py"]
    done = reprokit.run("record", "-o", "run", "--on-nan", "capture", "--", *training)
    assert done.returncode == 123, done.stderr
    assert "warning" not in done.stderr
    (snapshot,) = (reprokit.directory / "run" / "snapshots").iterdir()
    header = json.loads((snapshot / "snapshot.json").read_text())
    assert [set(node) for node in header["batches"][0]["value"]["tuple"]] == [{"tensor"}, {"ragged"}]
    done = reprokit.run("snapshot", "reproduce", str(snapshot), "--json", "--", *training)
    assert is_the_same(json.loads(done.stdout)), done.stdout


@pytest.mark.slow
def test_one_sample_of_several_batches_is_found(tmp_path: Path) -> None:
    steps = captured(tmp_path, ACCUMULATING)
    result, _ = steps.redo("minimize", script(ACCUMULATING))
    assert is_the_same(result), result
    assert result["samples"] == rows_of_zeros(steps)
    assert (len(result["samples"]), result["of"]) == (1, 48)
    assert result["smallest"]
    assert not result["only_full"]
    trials = [line for line in steps.progress() if "text" in line]
    assert len(trials) == result["trials"]


@pytest.mark.slow
def test_parts_that_the_script_cannot_work_with_do_not_count(tmp_path: Path) -> None:
    """Nested batches, made by a worker; a single sample is an error, which the script passes by."""
    steps = captured(tmp_path, NESTED)
    result, _ = steps.redo("minimize", script(NESTED))
    assert is_the_same(result), result
    assert rows_of_zeros(steps)
    assert set(rows_of_zeros(steps)) < set(result["samples"])
    assert (len(result["samples"]), result["smallest"], result["only_full"]) == (2, True, False)


def rows_of_zeros(steps: Steps) -> list[int]:
    """The samples of all batches together that are nothing but zeros."""
    found, start = [], 0
    for value in load(steps.snapshots[0]).batches:
        inputs = value["in"]["x"] if isinstance(value, dict) else value[0]
        found += [start + row for row, values in enumerate(inputs) if not values.any()]
        start += len(inputs)
    return found


@pytest.mark.extended
def test_a_step_that_takes_the_whole_batch_says_so(tmp_path: Path) -> None:
    steps = captured(tmp_path, WHOLE)
    result, _ = steps.redo("minimize", script(WHOLE))
    assert (result["reproduced"], result["only_full"], result["smallest"]) == (True, True, True)
    assert result["samples"] == list(range(16))


@pytest.mark.slow
def test_an_overflow_under_a_scaler_is_explained_and_another_model_refused(tmp_path: Path) -> None:
    steps = captured(tmp_path, SCALED)
    result, _ = steps.redo("explain", script(SCALED))
    assert is_the_same(result), result
    assert result["trigger"]["kind"] == "loss"
    assert (result["phase"], result["operation"]) == ("forward", "aten::mul")
    assert "overflows float16" in result["words"]
    assert result["where"][0][1] == line_of(SCALED)
    other, done = steps.redo("reproduce", script(SCALED, units=7))
    assert other["trouble"] == (
        "the snapshot is of another model: 0.weight is [24, 8] in the snapshot and [7, 8] in the script's Sequential; "
        "3.weight is [1, 24] in the snapshot and [1, 7] in the script's Sequential"
    )
    assert done.returncode == 0


# Through the command line


def schema(name: str) -> Any:
    return json.loads(resources.files("reprokit").joinpath(f"schemas/{name}.schema.json").read_text())


def test_a_training_is_captured_made_smaller_and_explained(reprokit: Reprokit) -> None:
    """The script ends itself after each trial that is not finite, and is started again."""
    reprokit.script("train.py", script(ENDING))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", *command)
    assert done.returncode == 123, done.stderr
    snapshot = str(next(reprokit.directory.glob(".reprokit/*/snapshots/step-*")))
    results = {}
    for mode in ("minimize", "explain"):
        done = reprokit.run("snapshot", mode, snapshot, "--json", *command)
        assert done.returncode == 0, done.stderr
        results[mode] = json.loads(done.stdout)
        jsonschema.validate(results[mode], schema("snapshot-result"))
        assert is_the_same(results[mode]), results[mode]
    assert len(results["minimize"]["samples"]) == 1
    assert results["explain"]["operation"] == "aten::log"
    assert results["explain"]["where"][0][1] == line_of(ENDING)
    assert "log of 0 is infinite; 1 of 4 inputs is 0" in results["explain"]["words"]


LARGE_LOSS = """
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    (net(torch.rand(4, 8)).pow(2).mean() + (100.0 if step == 4 else 0.0)).backward()
    optimizer.step()
"""


@pytest.mark.extended
def test_a_condition_is_known_again_however_it_was_spelled(reprokit: Reprokit) -> None:
    reprokit.script("train.py", script(LARGE_LOSS))
    command = ("--", sys.executable, "train.py")
    done = reprokit.run("run", "--on-nan", "capture", "--capture-when", "loss > 50", *command)
    assert done.returncode == 123, done.stderr
    snapshot = next(reprokit.directory.glob(".reprokit/*/snapshots/step-*"))
    trigger = json.loads((snapshot / "snapshot.json").read_text())["trigger"]
    assert (trigger["condition"], trigger["what"]) == ("loss-above", "loss>50")
    done = reprokit.run("snapshot", "reproduce", str(snapshot), "--json", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert is_the_same(json.loads(done.stdout))
