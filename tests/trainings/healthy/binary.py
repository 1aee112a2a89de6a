"""Two classes, one logit, dropout and weight decay, an evaluation after each of two epochs."""

import torch
from torch import nn

torch.manual_seed(28)
y = (torch.rand(1500, 1) < 0.4).float()
x = torch.randn(1500, 10) + 0.7 * y
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
for _ in range(2):
    net.train()
    for rows in torch.randperm(1200).split(30):
        optimizer.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        for rows in torch.arange(1200, 1500).split(100):
            criterion(net(x[rows]), y[rows])
