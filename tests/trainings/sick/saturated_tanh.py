"""Weights so large that tanh is at its ends."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = ((x - x.mean()) / x.std()).float()
torch.manual_seed(8)
net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
for layer in (net[0], net[2]):
    nn.init.normal_(layer.weight, std=10.0)
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(50):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
