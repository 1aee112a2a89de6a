"""An encoder that learns to match two noisy views of a sample among those of others."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

torch.manual_seed(29)
encoder = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
projection = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam([*encoder.parameters(), *projection.parameters()], 1e-3)
data = torch.randn(20, 16).repeat(40, 1) + 0.3 * torch.randn(800, 16)
for _ in range(50):
    batch = data[torch.randint(0, 800, (64,))]
    first, second = (normalize(projection(encoder(batch + 0.2 * torch.randn_like(batch)))) for _ in range(2))
    optimizer.zero_grad()
    cross_entropy(first @ second.T / 0.2, torch.arange(64)).backward()
    optimizer.step()
