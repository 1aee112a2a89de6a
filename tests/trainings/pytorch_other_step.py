"""A training whose step 5 is another one where a file named `other` is there."""

import os

import torch

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    if step == 5 and os.path.exists("other"):
        loss = loss * 2
    loss.backward()
    optimizer.step()
