"""Loops whose captured steps are done again; a sample of zeros has a square root whose gradient is not finite.

Each start has other weights and another order.
"""

import copy
import os
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

CASE = "accumulating"
UNITS = 24  # so many that dropout never takes all of one sample's, which has no finite gradient either
seed = int.from_bytes(os.urandom(3), "big")
torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
x, y = torch.rand(96, 8) + 0.1, torch.rand(96, 1)
x[50] = 0
net = nn.Sequential(nn.Linear(8, UNITS, bias=False), nn.Dropout(0.3), nn.Tanh(), nn.Linear(UNITS, 1, bias=False))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)


def loss_of(out, target):
    return (torch.sqrt(out**2) - target).abs().mean()


def accumulating():
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    net.eval()
    with torch.no_grad():
        for a, b in loader:
            loss_of(net(a), b)
    net.train()
    for _ in range(2):
        for number, (a, b) in enumerate(loader):
            (loss_of(net(a), b) / 3).backward()
            if number % 3 == 2:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()


def nested():
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, UNITS), nn.Dropout(0.3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    class Named(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            return {"in": {"x": x[index], "name": f"sample {index}"}, "y": y[index, 0], "worker": random.random()}

    while True:
        for batch in DataLoader(Named(), batch_size=16, shuffle=True, num_workers=1):
            names, rows = batch["in"]["name"], batch["in"]["x"]
            assert len(names) == len(batch["y"]) == len(batch["worker"])
            assert all((name == "sample 50") == (not bool(row.any())) for name, row in zip(names, rows, strict=True))
            optimizer.zero_grad()
            try:
                loss_of(model(rows).sum(1) * rows.any(1), batch["y"]).backward()
            except ValueError:  # batch normalization refuses a single sample
                continue
            optimizer.step()


def closure():
    gain = nn.Parameter(torch.randn(8) * 0.1)  # of no module, and used before one is called
    optimizer = torch.optim.LBFGS([*net.parameters(), gain], lr=1e-3, max_iter=3)
    for _ in range(2):
        for batch in loader:

            def evaluate(batch=batch):
                a, b = batch
                optimizer.zero_grad()
                loss = loss_of(net(a * gain.exp()), b)
                loss.backward()
                return loss

            optimizer.step(evaluate)


def two_optimizers():
    critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    other = torch.optim.SGD(critic.parameters(), lr=1e-2)
    for _ in range(2):
        for a, b in loader:
            other.zero_grad()
            (critic(b).mean() - critic(net(a).detach()).mean()).backward()
            other.step()
            optimizer.zero_grad()
            out = net(a)
            (critic(out).mean() + loss_of(out, b)).backward()
            optimizer.step()


def parts():
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


def compiled():
    @torch.compile(backend="eager")
    def loss_at(a, b):
        return loss_of(net(a), b)

    for a, b in loader:
        optimizer.zero_grad()
        loss_at(a, b).backward()
        optimizer.step()


def without_loader():
    for _ in range(40):
        rows = torch.randint(0, 96, (16,))
        optimizer.zero_grad()
        nn.functional.mse_loss(torch.sqrt(net(x[rows]) ** 2), y[rows]).backward()
        optimizer.step()


def divided():
    class Unit(nn.Module):
        def forward(self, values):
            copy.deepcopy(values.detach())
            return values / torch.sqrt((values * values).sum(-1, keepdim=True))  # origin

    model, numbers = nn.Sequential(Unit(), net), iter(range(0, 96, 16))
    while True:
        rows = torch.arange(number := next(numbers), number + 16)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()


def two_loaders():
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


def ahead():
    """The loader is one batch ahead of the script, as that of accelerate; an evaluation leaves gradients on."""

    def fetched(loader):
        iterator = iter(loader)
        batch = next(iterator)
        while batch is not None:
            now, batch = batch, next(iterator, None)
            yield now

    others = DataLoader(TensorDataset(torch.rand(12, 8), torch.rand(12, 1)), 4)
    for a, b in fetched(DataLoader(TensorDataset(x, y), 16)):
        optimizer.zero_grad()
        loss_of(net(a), b).backward()
        optimizer.step()
        net.eval()
        for c, d in others:
            loss_of(net(c), d)
        net.train()


class Opaque:
    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")


def fields(access=dict.get):
    """Of such a dictionary any name can be asked, and is None, or none that it has not."""

    class Fields(dict):
        __getattr__ = access

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, batch):
            return Fields(out=self.net(batch.a))

    def collate(rows):
        a, b = (torch.stack(part) for part in zip(*rows, strict=True))
        return Fields(a=a, b=b, other=Opaque())

    model = Model()
    for _ in range(2):
        for batch in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, collate_fn=collate):
            optimizer.zero_grad()
            loss_of(model(batch).out, batch.b).backward()
            optimizer.step()


def strict_fields():
    fields(dict.__getitem__)


def strided(layout=torch.strided):
    def collate(rows):
        a, b = (torch.stack(part) for part in zip(*rows, strict=True))
        return a, torch.nested.nested_tensor([b[:2], b[2:5], b[5:]], layout=layout)

    for _ in range(2):
        for a, parts in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, collate_fn=collate):
            optimizer.zero_grad()
            loss_of(net(a), torch.cat(parts.unbind())).backward()
            optimizer.step()


def jagged():
    strided(torch.jagged)


def keywords():
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


def scaled():
    x[50] = 600
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        for a, _ in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (a.half()[:, :1] * a.half()[:, 1:2] * net(a)).mean()  # scaled
            scaler.scale(loss.float()).backward()
            scaler.step(optimizer)
            scaler.update()


def ending():
    for a, _ in DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = torch.log(net(a) ** 2).mean()  # ending
        loss.backward()
        if not torch.isfinite(loss):
            raise ArithmeticError("the loss is not finite")
        optimizer.step()


def whole():
    for _ in range(2):
        for a, _ in loader:
            optimizer.zero_grad()
            out = net(a)
            if len(a) == 16 and not bool(a.any(1).all()):
                out = out / 0
            out.mean().backward()
            optimizer.step()


def large_loss():
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        (net(torch.rand(4, 8)).pow(2).mean() + (100.0 if step == 4 else 0.0)).backward()
        optimizer.step()


globals()[CASE]()
