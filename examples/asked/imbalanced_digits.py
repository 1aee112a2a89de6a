"""Trains a classifier on digits of which some are rare. It seeds nothing, and knows nothing of reprokit."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RARE = {3: 6, 8: 8}  # how many images are left of a digit

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
kept = torch.cat([torch.nonzero(labels == digit).ravel()[: RARE.get(digit, 100)] for digit in range(10)])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.003)
for epoch in range(6):
    for batch, target in DataLoader(TensorDataset(images[kept], labels[kept]), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(batch), target)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: last loss {loss.item():.4f}")
model.eval()
with torch.no_grad():
    held_out = torch.cat([torch.nonzero(labels == digit).ravel()[120:] for digit in range(10)])
    for batch, target in DataLoader(TensorDataset(images[held_out], labels[held_out]), batch_size=128):
        criterion(model(batch), target)
