"""Trains a chain of layers that are named by the arguments."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
layers = nn.ModuleDict()
for name in sys.argv[1:]:
    layers[name] = nn.Linear(4, 4)
optimizer = torch.optim.SGD(layers.parameters(), 0.1)
for _ in range(3):
    values = torch.randn(8, 4)
    for name in sys.argv[1:]:
        values = layers[name](values)
    loss = values.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
