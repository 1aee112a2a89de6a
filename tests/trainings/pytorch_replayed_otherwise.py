"""A training whose third execution, counted in a file, computes another second step; the argument scales the fifth."""

import sys

import torch

count, scale = sys.argv[1], float(sys.argv[2])
with open(count, "a+") as file:
    file.write(".")
    executions = file.tell()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    factor = 2.0 if (step, executions) == (1, 3) else scale if step == 4 else 1.0
    optimizer.zero_grad()
    (model(torch.ones(4)) * factor).square().mean().backward()
    optimizer.step()
