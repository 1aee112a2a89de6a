"""Goes on with a loss that is not finite until somebody stops it, for so many steps at most."""

import atexit
import sys
import time

import torch

atexit.register(print, "exit handlers ran")
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
try:
    for step in range(int(sys.argv[1])):
        loss = (weight * (float("nan") if step > 2 else 1.0)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
finally:
    print("saved a checkpoint")
