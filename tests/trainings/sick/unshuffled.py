"""Samples in the order of their classes."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
order = y.argsort(stable=True)
x = ((x - x.mean()) / x.std()).float()[order]
torch.manual_seed(10)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.05)
for inputs, labels in DataLoader(TensorDataset(x, y[order]), batch_size=36):
    optimizer.zero_grad()
    criterion(net(inputs), labels).backward()
    optimizer.step()
