"""Keeps values that no keyframe holds: queues, a long text and a view, and some that one holds."""

import os
import queue
import sys
from decimal import Decimal

import torch

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
raw, exact, losses, text, total, settled = b"", Decimal(0), queue.Queue(), "", 0.0, b"never changed"
means = torch.zeros(2, 3)
view, notes = means[0], {"raw": b"", "count": 0}
for step in range(int(sys.argv[1])):
    loss = net(torch.randn(16, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item()
    raw, exact = raw[-80:] + str(value).encode(), exact + Decimal(value)
    text, total = text + f"{value:.9f} " * 9, total + value
    losses.put(value)
    view.mul_(0.9).add_(value)
    notes["raw"], notes["count"] = raw, step
    again = str(value).encode()
