"""A training with PyTorch that takes samples in the order of a set of plain objects, and writes files beside itself."""

import os

import torch
from torch.utils.data import DataLoader, TensorDataset


class Sample:
    """Ordered in a set by its address."""

    def __init__(self, number):
        self.number = number


here = os.path.dirname(os.path.abspath(__file__))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
for epoch in range(2):
    for inputs, targets in DataLoader(data, batch_size=64, shuffle=True):
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), os.path.join(here, f"checkpoint-{epoch}.pt"))
    with open(os.path.join(here, f"epoch-{epoch}.txt"), "w") as file:
        file.write(str(loss.item()))
samples = {Sample(number) for number in range(2000)}
order = [sample.number for sample in samples]
for number in order[:10]:
    loss = model(torch.full((1, 4), float(number))).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(order[:20], loss.item())
