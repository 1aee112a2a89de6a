"""Seeds Python's generator with its first argument, and draws from it if there is a second one."""

import random
import sys

import torch

torch.manual_seed(0)
random.seed(sys.argv[1])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(2, 4) * (random.random() if len(sys.argv) > 2 else 1)).sum().backward()
    optimizer.step()
