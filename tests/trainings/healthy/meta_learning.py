"""Meta-learning of sine waves, as MAML does: an inner step with torch.autograd.grad in each outer one."""

import math

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), 2e-3)
for _ in range(150):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(4):
        height, shift = 0.5 + torch.rand(1), math.pi * torch.rand(1)
        x = 10 * torch.rand(20, 1) - 5
        y = height * (x + shift).sin()
        own = dict(net.named_parameters())
        inner = nn.functional.mse_loss(functional_call(net, own, (x[:10],)), y[:10])
        changes = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        adapted = {name: value - 0.05 * change for (name, value), change in zip(own.items(), changes, strict=True)}
        total = total + nn.functional.mse_loss(functional_call(net, adapted, (x[10:],)), y[10:])
    (total / 4).backward()
    optimizer.step()
