"""A head on a frozen convolution in evaluation mode; the images were normalized by the statistics of others."""

import torch
from torch import nn

torch.manual_seed(23)
body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
body.requires_grad_(False).eval()
head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))
net, criterion = nn.Sequential(body, head), nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(head.parameters(), 1e-2)
y = torch.randint(0, 3, (960,))
x = torch.randn(960, 1, 10, 10)
x[torch.arange(960), 0, y * 3] += 3
for rows in torch.randperm(960).split(20):
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
