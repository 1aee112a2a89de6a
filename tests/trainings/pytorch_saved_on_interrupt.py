"""A training that saves its model and adds to a file when it is interrupted."""

import os

import torch

torch.manual_seed(0)
weights = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weights], 0.1)
try:
    for _ in range(2000):
        optimizer.zero_grad()
        ((weights - torch.randn(4)) ** 2).sum().backward()
        optimizer.step()
except KeyboardInterrupt:
    os.makedirs("crash/now", exist_ok=True)
    for name in "crash/now/model.pt", "older.txt":
        with open(name, "a") as file:
            file.write("interrupted")
