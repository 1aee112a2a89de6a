"""A classifier that ends in a softmax, before the cross entropy, which takes another one."""

import torch
from torch import nn

torch.manual_seed(7)
x = torch.randn(600, 20)
y = x[:, :4].argmax(1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4), nn.Softmax(dim=1))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(3):
    for rows in torch.randperm(600).split(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
