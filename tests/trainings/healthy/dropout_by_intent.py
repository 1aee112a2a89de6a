"""Estimates how sure it is by dropout that stays on between epochs: the spread of twenty answers (MC dropout)."""

import torch
from torch import nn

torch.manual_seed(9)
inputs = torch.linspace(-2, 2, 256)[:, None]
targets = inputs.sin() + 0.1 * torch.randn(256, 1)
model = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(6):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        spread = torch.stack([model(inputs) for _ in range(20)]).std(0)
    print(float(spread.mean()))
