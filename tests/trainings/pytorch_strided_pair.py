"""Trains two models in turn, the second in two of three steps, each with an optimizer of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
models = [nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))]
optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
loader = DataLoader(TensorDataset(torch.randn(960, 8), torch.randint(0, 3, (960,))), 8)
for number, (x, y) in enumerate(loader):
    for model, optimizer in zip(models, optimizers, strict=True):
        if model is models[1] and number % 3 == 2:
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
