"""A training of 12 steps that END ends after 6 of them, in one of several ways."""

import os
import random
import signal
import sys
import time

import torch

END = os.environ.get("END", "")
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    if step % 3 == 0:
        random.seed(step)
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
    if step == 5:
        if END == "SIGINT":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        if END == "fail":
            raise ValueError("the disk of the data is gone")
        if END == "exit":
            sys.exit(0)
torch.save(model.state_dict(), "model.pt")
