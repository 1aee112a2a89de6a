"""Learns without labels, as BYOL does: its target is a moving average of itself, in training mode, with dropout."""

import copy

import torch
from torch import nn

torch.manual_seed(4)
data = torch.randn(512, 12)
online = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16))
predictor = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
target = copy.deepcopy(online)
optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], 1e-3)
for _ in range(160):
    rows = data[torch.randint(0, 512, (64,))]
    one, two = (rows + 0.1 * torch.randn_like(rows) for _ in range(2))
    with torch.no_grad():
        aims = target(two), target(one)
    guesses = predictor(online(one)), predictor(online(two))
    loss = sum(2 - 2 * nn.functional.cosine_similarity(*pair).mean() for pair in zip(guesses, aims, strict=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, new in zip(target.parameters(), online.parameters(), strict=True):
            mean.lerp_(new, 0.01)
