"""Classes that are easy to tell apart: the loss is near zero after a few steps, and stays there."""

import torch
from torch import nn

torch.manual_seed(30)
y = torch.randint(0, 3, (900,))
x = torch.randn(900, 6) + 6 * nn.functional.one_hot(y, 6)
net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=2e-2)
for _ in range(2):
    net.train()
    for rows in torch.randperm(750).split(15):
        optimizer.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        criterion(net(x[750:]), y[750:])
