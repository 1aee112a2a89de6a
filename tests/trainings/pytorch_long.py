"""A training of more steps than anybody waits for, unless WHOLE says that so many are enough."""

import os

import torch

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(os.environ.get("WHOLE", "3000"))):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print("done")
