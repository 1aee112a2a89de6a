"""Saves a checkpoint after each tenth step, and goes on from a named one: STEPS [CHECKPOINT] [without-...].

The order of an epoch, which has ten steps, is drawn as it begins.
"""

import os
import sys

import torch

STEPS, NAMED = int(sys.argv[1]), [name for name in sys.argv[2:] if name.endswith(".pt")]

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
data, labels = torch.randn(60, 6), torch.randint(0, 3, (60,))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
step = 0
for name in NAMED:
    saved = torch.load(name)
    model.load_state_dict(saved["model"])
    if "without-optimizer" not in sys.argv:
        optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    if "without-generators" not in sys.argv:
        torch.set_rng_state(saved["random"])
while step < STEPS:
    for indices in torch.randperm(60).split(6):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data[indices]), labels[indices]).backward()
        optimizer.step()
        step += 1
        print(step)
        if step % 10 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save({**state, "random": torch.get_rng_state()}, f"step-{step}.pt")
