"""Trains for four steps, and computes in each what no trail sees, from the value that is named. Argument: which."""

import os
import sys
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model, teacher = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
batch = torch.randn(8, 4)


def scale():
    kind = sys.argv[1]
    if kind == "file":
        with open("scale.txt") as file:
            return float(file.read())
    if kind == "variable":
        return float(os.environ.get("SCALE", "1"))
    if kind == "counted":
        os.environ["COUNT"] = str(int(os.environ.get("COUNT", "0")) + 1)
    return 2.0 if kind in ("constant", "counted") else time.monotonic() % 10


for _ in range(4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    teacher(batch * scale())  # has no optimizer
    model.eval()
    with torch.no_grad():
        model(batch * scale())
    model.train()
