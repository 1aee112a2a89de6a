"""Saves each step's weights itself, and changes parameters between steps: dtype, freezing, further ones, layout."""

import sys

import numpy
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.ReLU(), torch.nn.Linear(33, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
values = {}
for step in range(16):
    if step == 3:
        model.double()
    if step == 5:
        model[0].bias.requires_grad_(False)
    if step == 7:
        model.append(torch.nn.Linear(1, 1).double())
        optimizer.add_param_group({"params": model[3].parameters()})
    if step == 9:
        model[0].weight.data = model[0].weight.data.t().contiguous().t()
    if step == 11:
        model[2].weight = torch.nn.Parameter(model[2].weight.detach().clone())
        optimizer.param_groups[0]["params"][2] = model[2].weight
    if step == 13:
        model.float()
    optimizer.zero_grad()
    model(torch.randn(8, 20, dtype=model[0].weight.dtype)).square().sum().backward()
    for name, parameter in model.named_parameters():
        values[f"{step} {name}"] = parameter.detach().clone().numpy()
    optimizer.step()
numpy.savez(sys.argv[1], **values)
