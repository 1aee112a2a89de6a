"""A training without end whose first step comes late."""

import time

import torch

weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], 0.1)
time.sleep(3)  # as it reads its data
while True:
    (weight - 1).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
