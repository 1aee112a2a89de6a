"""Labels what it is sure of by itself, without gradients and with dropout on, in each step (pseudo labels)."""

import torch
from torch import nn

torch.manual_seed(15)
inputs = torch.randn(600, 6)
labels = (inputs[:, 0] + inputs[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for step in range(160):
    known, open_rows = torch.randint(0, 100, (32,)), torch.randint(100, 600, (64,))
    loss = nn.functional.cross_entropy(model(inputs[known]), labels[known])
    if step >= 40:
        with torch.no_grad():
            sure, guessed = model(inputs[open_rows]).softmax(1).max(1)
        noisy = inputs[open_rows] + 0.1 * torch.randn(64, 6)
        losses = nn.functional.cross_entropy(model(noisy), guessed, reduction="none")
        loss = loss + (losses * (sure > 0.9)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
