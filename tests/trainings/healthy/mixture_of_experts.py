"""A mixture of experts with a router that chooses the best one, and a loss that balances them."""

import torch
from torch import nn

torch.manual_seed(8)
inputs = torch.randn(1024, 8)
targets = torch.where(inputs[:, :1] > 0, inputs[:, 1:2] * 2, -inputs[:, 2:3])


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.05), nn.Linear(24, 1)) for _ in range(4)
        )

    def forward(self, rows):
        shares = self.router(rows).softmax(1)
        best = shares.argmax(1)
        out = rows.new_zeros(len(rows), 1)
        for number, expert in enumerate(self.experts):
            chosen = best == number
            if chosen.any():
                out[chosen] = expert(rows[chosen]) * shares[chosen, number : number + 1]
        load = nn.functional.one_hot(best, 4).float().mean(0)
        return out, 4 * (load * shares.mean(0)).sum()


model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(200):
    rows = torch.randint(0, 1024, (128,))
    out, balance = model(inputs[rows])
    optimizer.zero_grad()
    (nn.functional.mse_loss(out, targets[rows]) + 0.01 * balance).backward()
    optimizer.step()
