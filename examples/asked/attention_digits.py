"""Trains a small transformer that reads digits row by row. It seeds nothing, and knows nothing of reprokit."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    """Eight rows are eight tokens; a ninth one gathers what decides."""

    def __init__(self, width=32):
        super().__init__()
        self.embedding, self.first = nn.Linear(8, width), nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 9, width) * 0.1)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, rows):
        tokens = torch.cat([self.first.expand(len(rows), -1, -1), self.embedding(rows)], 1) + self.position
        mixed, _ = self.attention(tokens, tokens, tokens)
        return self.head(self.norm(tokens + mixed)[:, 0])


digits = load_digits()
data = TensorDataset(torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target))
model, criterion = Reader(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for epoch in range(4):
    for batch, target in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(batch), target)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: last loss {loss.item():.4f}")
