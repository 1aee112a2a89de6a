"""A small training that computes each loss by a function that it is given."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x, y = torch.randn(24, 4), torch.randn(24, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
loader = DataLoader(TensorDataset(x, y), 8)


def steps(compute, parameters=None, between=lambda number, a: None):
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.01)
    for number, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        compute(number, a, b).backward()
        between(number, a)
        optimizer.step()
