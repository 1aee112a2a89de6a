"""Trains a model by torch.compile, or by gradients of torch.func: what their layers return is not seen."""

import sys

import torch
from torch import nn

torch.manual_seed(3)
x, y = torch.randn(40, 6), torch.randint(0, 2, (40,))
model, criterion = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
compiled, parameters = torch.compile(model, backend="aot_eager"), dict(model.named_parameters())


def loss_of(values, inputs, labels):
    return criterion(torch.func.functional_call(model, values, (inputs,)), labels)


for rows in torch.arange(40).split(10):
    optimizer.zero_grad()
    if sys.argv[1] == "compiled":
        criterion(compiled(x[rows]), y[rows]).backward()
    else:
        for name, gradient in torch.func.grad(loss_of)(parameters, x[rows], y[rows]).items():
            parameters[name].grad = gradient
    optimizer.step()
