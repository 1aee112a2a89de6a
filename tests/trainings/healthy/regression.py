"""Regression by least squares, down to a small loss."""

import torch
from torch import nn

torch.manual_seed(25)
x = torch.randn(1000, 8)
y = x[:, :1] * 2 - x[:, 1:2] + 0.1 * torch.randn(1000, 1)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
criterion, optimizer = nn.MSELoss(), torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(2):
    net.train()
    for rows in torch.randperm(800).split(32):
        optimizer.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        criterion(net(x[800:]), y[800:])
