"""A loop without zero_grad(): each update uses the gradients of all steps so far."""

import torch
from torch import nn

torch.manual_seed(8)
x = torch.randn(600, 20)
y = x[:, :4].argmax(1)
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.05)
for rows in torch.randperm(600).split(20):
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
