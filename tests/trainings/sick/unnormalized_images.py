"""Pixels from 0 to 255 as they come out of a file."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = (x * 255 / 16).round().float().reshape(-1, 1, 8, 8)
torch.manual_seed(11)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(50):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
