"""A training that ends with an error where its loss does not change, as it does while a replay leaves steps out."""

import os
import sys

import torch

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
losses: list[float] = []
for step in range(int(sys.argv[1])):
    loss = net(torch.randn(4, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step > 3 and loss.item() == losses[-1]:
        raise ValueError("the loss does not change")
    losses.append(loss.item())
