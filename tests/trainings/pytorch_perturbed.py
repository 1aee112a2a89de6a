"""A training that VARIANT changes in one place."""

import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

variant = os.environ.get("VARIANT", "")
torch.manual_seed(7)
x, y = torch.randn(96, 16), torch.randn(96, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(16, 8), nn.Dropout(), nn.Linear(8, 1)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x):
        out = self.fc2(self.drop(self.fc1(x)))
        self.norm(out.detach())
        return out


model = Net()
if variant == "initial":
    model.fc1.weight.data[0, 0] += 1
if variant == "drawn":
    model.fc1.weight.data[0, 0] += random.random()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
number = 0
for _ in range(4):
    for a, b in DataLoader(TensorDataset(x, y), 8):
        if number == 28 and variant == "seed":
            torch.rand(1)
        if number == 20 and variant == "late":
            torch.rand(1)
        if number == 12 and variant == "unused":
            random.random()
        if number == 33 and variant == "between":
            model.fc1.weight.data.mul_(1.5)
        if number == 30 and variant == "statistics":
            model.norm.momentum = 0.5
        if number == 31 and variant == "statistics":
            model.norm.momentum = 0.1
        optimizer.zero_grad()
        made = a + 0.001 if number == 35 and variant == "made" else a
        loss = nn.functional.mse_loss(model(made), b)
        if (number == 0 and variant == "race") or (number == 20 and variant == "unused"):
            loss = loss * 1.0001
        loss.backward()
        if number == 40 and variant == "gradient":
            model.fc1.weight.grad[0, 0] = torch.nextafter(model.fc1.weight.grad[0, 0], torch.tensor(9.0))
        if number == 40 and variant == "update":
            optimizer.param_groups[0]["momentum"] = 0.5
        if number == 39 and variant == "buffer":
            model.drop.p = 0.25
        if number == 44 and variant == "killed":
            os.kill(os.getpid(), 9)
        optimizer.step()
        number += 1
        if number == 23 and variant == "batch":
            x[0].neg_()  # of which the next epoch makes its first batch
