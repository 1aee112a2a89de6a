"""Biases far below zero: no unit of the hidden layers is ever active."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = ((x - x.mean()) / x.std()).float()
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
for layer in (net[0], net[2]):
    nn.init.constant_(layer.bias, -10.0)
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(50):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
