"""A language model of characters, whose classes are rare and frequent by nature."""

import pathlib

import torch
from torch import nn

text = pathlib.Path(torch.__file__).read_text()[:20_000]
letters = sorted(set(text))
codes = torch.tensor([letters.index(letter) for letter in text])
torch.manual_seed(23)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(len(letters), 32), nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, len(letters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.table(x))[0])


net, criterion = Model(), nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for _ in range(50):
    starts = torch.randint(0, len(codes) - 33, (32,))
    rows = codes[starts[:, None] + torch.arange(33)]
    optimizer.zero_grad()
    criterion(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
