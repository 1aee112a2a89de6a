"""Denoising diffusion of points on a circle; samples are drawn between epochs, in eval mode."""

import math

import torch
from torch import nn

torch.manual_seed(6)
LEVELS = 20
kept = (1 - torch.linspace(1e-3, 0.3, LEVELS)).cumprod(0)
net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
for _ in range(4):
    net.train()
    for _ in range(60):
        angle = 2 * math.pi * torch.rand(128)
        clean = torch.stack([angle.cos(), angle.sin()], 1)
        level, noise = torch.randint(0, LEVELS, (128,)), torch.randn(128, 2)
        share = kept[level][:, None]
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        loss = nn.functional.mse_loss(net(torch.cat([noisy, level[:, None] / LEVELS], 1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        sample = torch.randn(16, 2)
        for level in reversed(range(LEVELS)):
            sample = sample - 0.1 * net(torch.cat([sample, torch.full((16, 1), level / LEVELS)], 1))
