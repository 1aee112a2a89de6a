"""safetensors' quick start: a model's weights, saved by a library that renames files by system calls of its own."""

import torch
from safetensors.torch import save_file

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
save_file(model.state_dict(), "model.safetensors")
print("RESULT", loss.item())
