"""A training of many steps, in which others may change something before, between and after them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
torch.set_num_threads(1)
x, y = torch.randn(96, 64), torch.randn(96, 1)
model = nn.Sequential(nn.Linear(64, 2400), nn.Dropout(), nn.Linear(2400, 1))  # more than is digested at once
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), 8)


def train(count, before=lambda number: None, after=lambda number: None, between=lambda number: None):
    number = 0
    while number < count:
        for a, b in loader:
            before(number)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            between(number)
            optimizer.step()
            after(number)
            number += 1
            if number == count:
                break
