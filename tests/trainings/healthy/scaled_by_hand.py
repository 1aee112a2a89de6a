"""Scales its loss itself before it goes backward, by a number that doubles, and divides the gradients by it."""

import torch

torch.manual_seed(5)
inputs = torch.randn(256, 8)
targets = inputs @ torch.randn(8, 1) + 0.1 * torch.randn(256, 1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
scale = 16.0
for step in range(160):
    rows = torch.randint(0, 256, (32,))
    loss = torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad.div_(scale)
    optimizer.step()
    if step % 20 == 19:
        scale *= 2
