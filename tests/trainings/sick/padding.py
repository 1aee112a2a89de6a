"""Short sentences, padded to the length of the longest one that there could be."""

import torch
from torch import nn

torch.manual_seed(12)
tokens = torch.randint(1, 100, (1600, 64))
tokens[torch.arange(64) >= torch.randint(4, 20, (1600, 1))] = 0
y = (tokens[:, 0] > 50).long()


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(100, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.table(x))[0][:, -1])


net, criterion = Classifier(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for rows in torch.randperm(1600).split(32):
    optimizer.zero_grad()
    criterion(net(tokens[rows]), y[rows]).backward()
    optimizer.step()
