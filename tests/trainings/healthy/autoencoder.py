"""Digits from 0 to 1, coded and decoded; the last layer is a sigmoid."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x = torch.as_tensor(load_digits().data).float() / 16
torch.manual_seed(26)
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 64), nn.Sigmoid())
criterion, optimizer = nn.MSELoss(), torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(50):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    criterion(net(x[rows]), x[rows]).backward()
    optimizer.step()
