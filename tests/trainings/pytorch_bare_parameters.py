"""Trains parameters of no module, in two groups of one optimizer; clipping gets them in another order."""

import torch

rows = [torch.nn.Parameter(torch.rand(3)) for _ in range(3)]
optimizer = torch.optim.Adam([{"params": rows[:2]}, {"params": rows[2:], "lr": 0.1}], lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    sum((row**2).sum() for row in rows).backward()
    torch.nn.utils.clip_grad_norm_(rows[:0:-1], 1.0)
    optimizer.step()
