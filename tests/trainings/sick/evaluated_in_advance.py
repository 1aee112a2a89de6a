"""A validation without model.eval(), so that dropout is on in it: before the training, and after each epoch."""

import torch
from torch import nn

torch.manual_seed(7)
x = torch.randn(600, 20)
y = x[:, :4].argmax(1)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 4))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for rows in torch.randperm(500).split(25) if epoch else ():
        optimizer.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        for rows in torch.arange(500, 600).split(25):
            criterion(net(x[rows]), y[rows])
