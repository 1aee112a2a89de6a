"""Fetches batches before it uses them; the loss is NaN by one sample. Arguments: how, and the sample."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

kind, bad = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
x, y = torch.rand(64, 4) + 0.1, torch.randn(64, 1)
x[bad] = 0
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
every = 2 if kind == "accumulated" else 1


def ahead(batches, depth):
    waiting = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > depth:
            yield waiting.pop(0)
    yield from waiting


def joined(batches):
    for first, second in zip(batches, batches, strict=True):
        yield [torch.cat(parts) for parts in zip(first, second, strict=True)]


loader = DataLoader(TensorDataset(x, y), 8)
loop = joined(iter(loader)) if kind == "joined" else ahead(loader, 3 if kind == "far" else 1)
for number, (inputs, targets) in enumerate(loop):
    share = inputs / inputs.sum(1, keepdim=True)
    loss = (model(share) - targets).square().mean()
    loss.backward()
    if (number + 1) % every == 0:
        optimizer.step()
        optimizer.zero_grad()
