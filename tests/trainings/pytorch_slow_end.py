"""Four steps, and then an end that takes two seconds."""

import atexit
import time

import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
atexit.register(time.sleep, 2)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(3)).sum().backward()
    optimizer.step()
