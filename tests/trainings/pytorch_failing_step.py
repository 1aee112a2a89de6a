"""Draws from PyTorch and NumPy, and has a loss that is not finite at step 15."""

import numpy
import torch

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
x = torch.tensor(numpy.random.rand(20, 6, 3), dtype=torch.float32)
for step in range(20):
    optimizer.zero_grad()
    (model(x[step]).square().sum() / (0.0 if step == 15 else 1.0)).backward()
    optimizer.step()
print("went on")
