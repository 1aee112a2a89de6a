"""A learning rate with which weights and gradients grow without end, while a bounded loss stays finite."""

import torch
from torch import nn

torch.manual_seed(4)
x = torch.randn(600, 20)
y = (x[:, :3].sum(1, keepdim=True) > 0).float()
net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1), nn.Sigmoid())
criterion, optimizer = nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=3000.0)
for _ in range(40):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
