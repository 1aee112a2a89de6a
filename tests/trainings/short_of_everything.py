"""Prints, forks and trains where a system call that makes files of the run fails: CALL, or CALL-kill."""

import os
import sys

import denied_calls
import torch
from torch.utils.data import DataLoader, TensorDataset

CALL, _, HOW = sys.argv[1].partition("-")
children = []
if HOW != "kill":
    children.append(os.fork())
    if not children[0]:
        os.urandom(8)
        denied_calls.deny(CALL)
        os.urandom(20000)
        print("a child")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(children[0], 0)
denied_calls.deny(CALL, HOW == "kill")
print("begin", flush=True)
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (batch,) in DataLoader(TensorDataset(torch.rand(40, 3)), 8, shuffle=True):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), flush=True)
