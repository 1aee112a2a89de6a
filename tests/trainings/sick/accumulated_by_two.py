"""A learning rate with which nothing is learned, by two optimizers of one loss whose gradients are accumulated."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = ((x - x.mean()) / x.std()).float()
torch.manual_seed(4)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
criterion = nn.CrossEntropyLoss()
optimizers = [torch.optim.SGD(layer.parameters(), lr=1e-6, momentum=0.9) for layer in (net[0], net[2])]
for _ in range(50):
    for optimizer in optimizers:
        optimizer.zero_grad()
    for rows in torch.randint(0, len(x), (2, 32)):
        criterion(net(x[rows]), y[rows]).backward()
    for optimizer in optimizers:
        optimizer.step()
