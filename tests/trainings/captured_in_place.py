"""Loops whose batches a snapshot cannot always stand in for: two views, time first, a class of its own, prefetching.

CASE: sample 50 makes the result, or the gradient, of the line that is marked with it infinite or NaN.
"""

import os
import sys
from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(int.from_bytes(os.urandom(3), "big"))
x = torch.rand(240, 6, 4) + 0.1
x[50] = 0
data = TensorDataset(x)
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def views():
    def two(rows):
        batch = torch.stack([row for (row,) in rows])
        return [batch[:, :3] + 0.01 * torch.rand(len(rows), 3, 4) * (batch[:, :3] > 0), batch[:, 3:]]

    for one, other in DataLoader(data, 8, shuffle=True, collate_fn=two):
        both = torch.cat([one, other])
        weight = both.sum((1, 2))
        update((net(both).mean((1, 2)) / weight).mean())  # views


def time_first():
    cell = nn.GRU(4, 4)
    trained = torch.optim.SGD(cell.parameters(), lr=1e-2)
    for (batch,) in DataLoader(data, 6, shuffle=True):
        states, _ = cell(batch.transpose(0, 1).contiguous())
        lengths = (batch.transpose(0, 1) > 0).sum((0, 2)).sqrt()
        loss = (states.sum((0, 2)) * torch.log(lengths)).mean()  # time_first
        trained.zero_grad()
        loss.backward()
        trained.step()


class Batch:
    __slots__ = ("rows",)

    def __init__(self, rows):
        self.rows = [row for (row,) in rows]


def own_class():
    for batch in DataLoader(data, 8, shuffle=True, collate_fn=Batch):
        rows = torch.stack(batch.rows).mean(1)
        update((net(rows) / rows.norm(dim=1, keepdim=True)).mean())  # own_class


def prefetched():
    ahead = deque()
    for (batch,) in DataLoader(data, 8, shuffle=True):
        ahead.append(batch.mean(1))
        if len(ahead) == 4:
            rows = ahead.popleft()
            update((net(rows) * rows.sum(1, keepdim=True)).abs().sqrt().mean())  # prefetched


def mixed():
    for (batch,) in DataLoader(data, 8, shuffle=True):
        rows = batch.mean(1)
        near = (rows + rows[torch.randperm(len(rows))] - 0.55).clamp(min=0)
        far = batch[:, 0].roll(1, 0)
        update((net(near) / far.sum(1, keepdim=True)).mean())  # mixed


def given():
    data = TensorDataset(x.where(x > 0, torch.nan))
    for (batch,) in DataLoader(data, 8, shuffle=True):  # given
        update(net(batch).mean())


def transformed():
    class Logarithms(torch.utils.data.Dataset):
        def __getitem__(self, index):
            return x[index].log()  # transformed

        def __len__(self):
            return len(x)

    for batch in DataLoader(Logarithms(), 8, shuffle=True):
        update(net(batch).mean())


globals()[sys.argv[1]]()
