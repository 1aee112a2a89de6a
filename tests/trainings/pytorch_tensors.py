"""A small training with what is hard to save: tied weights, a module called twice, an operation in place, clipping."""

import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)
        self.tied = self.first
        self.short = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.table = nn.Embedding(5, 4, sparse=True)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x = self.act(self.first(x)) + self.table(index)
        x = self.act(self.tied(x)) + self.short(x.bfloat16()).float()
        return self.last(x)


torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
net, criterion = Net(), nn.CrossEntropyLoss()
dense = [p for name, p in net.named_parameters() if not name.startswith("table")]
optimizer = torch.optim.Adam(dense)
table = torch.optim.SGD(net.table.parameters(), lr=0.1)
for step in range(12):
    for part in range(2):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        output = net(x, torch.randint(0, 5, (6,)))
        loss = criterion(output, y) if part else cross_entropy(output, y)
        loss.backward()
    nn.utils.clip_grad_norm_(dense, 0.1)
    optimizer.step()
    table.step()
    optimizer.zero_grad()
    table.zero_grad()
    if step == 5:
        net.eval()
        with torch.no_grad():
            net(torch.randn(2, 4), torch.randint(0, 5, (2,)))
        net.train()
late = torch.optim.SGD(net.last.parameters(), lr=0.1)  # each of whose updates is a step of its own
for _ in range(2):
    criterion(net(torch.randn(6, 4), torch.randint(0, 5, (6,))), torch.randint(0, 3, (6,))).backward()
    late.step()
