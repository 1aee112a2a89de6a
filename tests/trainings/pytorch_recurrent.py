"""A recurrent layer, whose operator on the CPU returns a workspace that it does not fill."""

import torch
from torch import nn

torch.manual_seed(0)
layer, head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 2)
optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()])
for _ in range(4):
    outputs, _ = layer(torch.randn(6, 5, 8))
    loss = nn.functional.cross_entropy(head(outputs[:, -1]), torch.randint(0, 2, (6,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
