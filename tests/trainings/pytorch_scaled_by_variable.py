"""A training whose inputs are scaled by a variable of the environment from its third step on."""

import os

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    inputs = torch.ones(4) * (float(os.environ.get("SCALE", "1")) if step > 2 else 1.0)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
