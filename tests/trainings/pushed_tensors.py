"""Trains until a file is there, and five steps more. Argument: the file."""

import os
import sys
import time

import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
left = 5
while left:
    optimizer.zero_grad()
    net(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()
    if os.path.exists(sys.argv[1]):
        left -= 1
    else:
        time.sleep(0.1)
