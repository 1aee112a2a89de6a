"""Labels that mean nothing, learned by heart by a network that is large enough for it."""

import torch
from torch import nn

torch.manual_seed(6)
x, y = torch.randn(1200, 20), torch.randint(0, 4, (1200,))
net = nn.Sequential(nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=2e-3)
for _ in range(2):
    net.train()
    for rows in [rows for _ in range(8) for rows in torch.randperm(200).split(20)]:  # an epoch sees a sample often
        optimizer.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        criterion(net(x[200:]), y[200:])
