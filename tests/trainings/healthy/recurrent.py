"""An LSTM that learns to sum, with gradients that are clipped."""

import torch
from torch import nn

torch.manual_seed(29)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


net, criterion = Sum(), nn.SmoothL1Loss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(50):
    x = torch.rand(64, 10, 1)
    optimizer.zero_grad()
    criterion(net(x), x.sum(1)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
