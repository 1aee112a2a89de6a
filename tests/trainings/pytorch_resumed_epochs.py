"""A training that saves model and optimizer at the end of each epoch, and goes on from there.

Arguments: epochs, and "exact" to save the generator too.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(256, 10)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
first = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"]
    if sys.argv[2:] == ["exact"]:
        torch.set_rng_state(saved["generator"])
for epoch in range(first, int(sys.argv[1]) if sys.argv[1:] else 6):
    for a, b in DataLoader(TensorDataset(x, y), 32, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}
    torch.save({**saved, "epoch": epoch + 1}, "checkpoint.pt")
