"""A frozen body and a new head; later the first layer is frozen again, after it was trained."""

import torch
from torch import nn

torch.manual_seed(1)
x = torch.randn(600, 20)
y = x[:, :3].argmax(1)
net, criterion = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU()), nn.CrossEntropyLoss()
model = nn.Sequential(net, nn.Linear(40, 3))


def train(optimizer) -> None:
    for rows in torch.randperm(600).split(20):
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()


net.requires_grad_(False)
train(torch.optim.Adam(model.parameters(), 5e-3))
net.requires_grad_(True)
train(torch.optim.Adam(model.parameters(), 2e-3))
net[0].requires_grad_(False)
train(torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], 1e-3))
