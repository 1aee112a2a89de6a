"""A training on a GPU that saves a checkpoint after its 15th step, without the generator if "generator" is given."""

import os
import sys

import torch
from torch import nn

CHECKPOINT = "checkpoint.pt"

torch.manual_seed(0)
x, y = torch.rand(480, 32, device="cuda"), torch.rand(480, 1, device="cuda")
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
begin = 0
if os.path.exists(CHECKPOINT):
    kept = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    begin = kept["step"]
    if "generator" in kept:
        torch.cuda.set_rng_state(kept["generator"])
for step in range(begin, 30):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[step * 16 : step * 16 + 16]), y[step * 16 : step * 16 + 16])
    loss.backward()
    optimizer.step()
    if step == 14:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        if "generator" not in sys.argv:
            kept["generator"] = torch.cuda.get_rng_state()
        torch.save(kept, CHECKPOINT)
print(loss.item())
