"""Forty steps, with as long a pause after each as a file says."""

import time
from pathlib import Path

import torch

pause = float(Path("pause").read_text())
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    time.sleep(pause)
