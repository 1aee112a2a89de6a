"""Digits as images, convolutions with batch normalization, momentum."""

import torch
from sklearn.datasets import load_digits
from torch import nn

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = ((x - x.mean()) / x.std()).float().reshape(-1, 1, 8, 8)
torch.manual_seed(22)
net = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    *(nn.Flatten(), nn.Linear(32, 10)),
)
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for _ in range(50):
    rows = torch.randint(0, len(x), (64,))
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
