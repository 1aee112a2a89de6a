"""Draws in the loader, and once more in the script if it is asked to."""

import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
random.seed(1)


class Data(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((4,), random.random() if i >= 16 else 1.0)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(DataLoader(Data(), 2)):
    if step == 5 and "MORE" in os.environ:
        random.random()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
