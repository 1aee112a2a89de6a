"""A transformer that learns whether a token is in a sequence, with a rate that is warmed up."""

import torch
from torch import nn

torch.manual_seed(24)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.table(x)).mean(1))


net, criterion = Classifier(), nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
for _ in range(50):
    x = torch.randint(1, 20, (64, 12))
    optimizer.zero_grad()
    criterion(net(x), (x == 7).any(1).long()).backward()
    optimizer.step()
    schedule.step()
