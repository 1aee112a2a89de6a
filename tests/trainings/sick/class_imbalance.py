"""One sample of thirty is of the class that is looked for."""

import torch
from torch import nn

torch.manual_seed(9)
y = (torch.rand(3000) < 1 / 30).long()
x = torch.randn(3000, 12) + y[:, None]
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=1e-3)
for rows in torch.randperm(3000).split(60):
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
