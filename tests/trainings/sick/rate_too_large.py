"""A learning rate with which the loss only jumps."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = ((x - x.mean()) / x.std()).float()
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=3.0)
for _ in range(50):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
