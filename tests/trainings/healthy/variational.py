"""A variational autoencoder whose divergence is weighed more from epoch to epoch, so that the loss rises meanwhile."""

import torch
from torch import nn

torch.manual_seed(13)
data = torch.randn(512, 3) @ torch.randn(3, 16)
encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 3e-3)
for epoch in range(12):
    for rows in torch.randperm(512).split(64):
        mean, spread = encoder(data[rows]).chunk(2, 1)
        drawn = mean + (spread / 2).exp() * torch.randn_like(mean)
        rebuilt = nn.functional.mse_loss(decoder(drawn), data[rows], reduction="sum") / len(rows)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum() / len(rows)
        optimizer.zero_grad()
        (rebuilt + min(1.0, epoch / 6) * divergence).backward()
        optimizer.step()
