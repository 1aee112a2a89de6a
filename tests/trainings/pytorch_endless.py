"""Trains without an end by operators that do not repeat, with a seed of the clock and a loader that shuffles."""

import random
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(2)
random.seed(int(time.time()))
table = torch.nn.Embedding(50, 8)
x = torch.nn.Parameter(torch.rand(500))
net = torch.nn.Sequential(torch.nn.Conv1d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6, 1))
optimizer = torch.optim.SGD([x, *table.parameters(), *net.parameters()], lr=0.001)
loader = DataLoader(TensorDataset(torch.randint(0, 500, (4, 50_000))), shuffle=True)
target = torch.rand(50_000)


def loss_of(index):
    rows = table(index[0, :64] % 50)
    sums = torch.zeros(10).scatter_add(0, index[0, :100] % 10, x[:100])
    return (x[index[0]] - target).square().sum() + net(rows[:, None]).mean() + sums.sum()


while True:
    for (index,) in loader:
        optimizer.zero_grad()
        loss_of(index).backward()
        optimizer.step()
