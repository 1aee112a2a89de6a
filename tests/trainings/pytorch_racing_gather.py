"""A training whose backward pass adds to few elements by atomic additions: its order is a race between threads."""

import sys

import torch

p = torch.nn.Parameter(torch.zeros(16))
index = torch.arange(400_000) % 16
torch.manual_seed(1)
target = torch.randn(400_000)
optimizer = torch.optim.SGD([p], lr=1e-3)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
    optimizer.zero_grad()
    loss = ((p[index] - target) ** 2).mean()
    loss.backward()
    optimizer.step()
print(loss.item())
