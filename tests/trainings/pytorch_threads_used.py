"""Trains with as many threads as there are, and tells them."""

import os

import torch

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(4096, 64), torch.randn(4096, 1)
for _ in range(4):
    loss = ((model(inputs) - targets) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "weights.pt")
print(torch.get_num_threads(), torch.get_num_interop_threads(), torch.backends.cpu.get_cpu_capability())
