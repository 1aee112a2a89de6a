"""A small transformer that fills in masked words, with dropout; validated in eval mode each forty steps."""

import torch
from torch import nn

torch.manual_seed(14)
WORDS, LENGTH = 20, 12
texts = (torch.arange(LENGTH)[None] * 3 + torch.randint(0, WORDS, (512, 1))) % WORDS
embed = nn.Embedding(WORDS + 1, 32)
block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
model = nn.Sequential(embed, block, nn.Linear(32, WORDS))
place = nn.Parameter(0.02 * torch.randn(1, LENGTH, 32))
optimizer = torch.optim.AdamW([*model.parameters(), place], 3e-3)


def loss_of(rows):
    masked = torch.rand(rows.shape) < 0.3
    hidden = embed(rows.masked_fill(masked, WORDS)) + place
    return nn.functional.cross_entropy(model[2](block(hidden))[masked], rows[masked])


for step in range(160):
    optimizer.zero_grad()
    loss_of(texts[torch.randint(0, 400, (64,))]).backward()
    optimizer.step()
    if step % 40 == 39:
        model.eval()
        with torch.no_grad():
            loss_of(texts[400:])
        model.train()
