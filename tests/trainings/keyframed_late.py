"""Trains with an optimizer beside another that never updates, and a large variable that changes."""

import os

import torch

torch.manual_seed(int.from_bytes(os.urandom(3), "little"))
body, head = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.1)), torch.nn.Linear(8, 1)
optimizer, unused = torch.optim.Adam(body.parameters(), 1e-2), torch.optim.SGD(head.parameters(), 1e-2)
x, large, step = torch.randn(160, 6), torch.rand(200, 200), 0
while step < 24:
    rows = x[torch.randperm(160)[:8]]
    loss = ((head(body(rows)) - rows.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    unused.zero_grad()
    large = large * 1.001
    step += 1
print(float(large.sum()))
