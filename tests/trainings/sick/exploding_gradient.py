"""A recurrence whose weights are far too large, and no clipping."""

import torch
from torch import nn

torch.manual_seed(3)


class Recurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(16, 16), nn.Linear(16, 1)
        nn.init.normal_(self.step.weight, std=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), 16)
        for time in range(x.shape[1]):
            state = torch.relu(self.step(state + x[:, time, None]))
        return self.head(state)


net, criterion = Recurrence(), nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(50):
    x = torch.randn(32, 30)
    optimizer.zero_grad()
    criterion(net(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
