"""Trains until it is killed in the midst of an epoch, or goes on from its checkpoint. Arguments: which, and a seed.

"positioned" goes on where the data were, "restarted" with a new epoch, as who forgets the sampler's state.
"""

import os
import signal
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT, KILLED, STEPS = 6, 8, 10
part, seed = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(TensorDataset(torch.ones(160, 4)), 16, shuffle=True)
torch.manual_seed(seed)
done = 0
if part != "first":
    state = torch.load("checkpoint.pt")
    model.load_state_dict(state["model"])
    done = state["steps"]
batches = iter(loader)
for _ in range(done if part == "positioned" else 0):
    next(batches)
for step in range(done, STEPS):
    (rows,) = next(batches)
    model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == CHECKPOINT and part == "first":
        torch.save({"model": model.state_dict(), "steps": CHECKPOINT}, "checkpoint.pt")
    if step + 1 == KILLED and part == "first":
        os.kill(os.getpid(), signal.SIGKILL)
print("done")
