"""A small convolutional network that learns a little of digits, and is evaluated twice, each time in three batches."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(7)
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
labels = torch.tensor(labels)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
optimizer, criterion = torch.optim.Adam(model.parameters(), lr=3e-3), nn.CrossEntropyLoss()
for _ in range(2):
    model.train()
    for rows in torch.randperm(320).split(32):
        optimizer.zero_grad()
        criterion(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for rows in torch.arange(320, 470).split(50):
            criterion(model(images[rows]), labels[rows])
