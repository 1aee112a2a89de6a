"""Trainings of several optimizers, or of one whose state holds lists."""

import os
import sys

import torch
from torch import nn

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
(kind,) = sys.argv[1:]
net, other = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2))


def backward(model: nn.Module) -> torch.Tensor:
    model.zero_grad()
    loss = model(torch.randn(6, 4)).pow(2).mean()
    loss.backward()
    return loss


if kind == "lbfgs":
    lists = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    for _ in range(4):
        lists.step(lambda: backward(net))
elif kind == "later":
    for optimizer in (torch.optim.Adam, torch.optim.RMSprop):
        trained = optimizer(net.parameters())
        for _ in range(4):
            backward(net)
            trained.step()
else:
    first, second = torch.optim.Adam(net.parameters()), torch.optim.Adam(other.parameters())
    for number in range(6):
        backward(net)
        first.step()
        if kind == "turns" or (kind == "fifth" and number % 5 == 4):
            backward(other)
            second.step()
