"""A training whose steps repeat, and that writes or prints the time as if it were a result, as the argument says."""

import sys
import time

import torch

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _step in range(6):
    inputs = torch.rand(8, 4)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
if sys.argv[1] == "console":
    print("score", time.perf_counter())
if sys.argv[1] == "outputs":
    with open("result.json", "w") as file:
        file.write(f'{{"score": {time.perf_counter()}, "train_time": {time.perf_counter()}}}')
