"""Five steps of one unseeded weight; its last loss is printed."""

import torch

weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(5):
    loss = (weight - torch.randn(3)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
