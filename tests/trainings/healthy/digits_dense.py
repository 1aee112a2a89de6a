"""Digits, dense layers, Adam, an evaluation after each of two epochs."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = ((x - x.mean()) / x.std()).float()
torch.manual_seed(21)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=1e-3)
order = torch.randperm(len(x))
for _ in range(2):
    net.train()
    for rows in order[torch.randperm(1400)].split(32):
        optimizer.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        criterion(net(x[order[1400:]]), y[order[1400:]])
