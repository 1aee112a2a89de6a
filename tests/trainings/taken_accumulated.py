"""Sums up the gradients of three batches for each update: taken_accumulated.py KIND [BAD STEP].

Kinds: "loader" (batches of a DataLoader), "drawn" (rows that the script draws).
"""

import sys

import torch

KIND, BAD = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1
MICRO, STEPS, ROWS = 3, 12, 8

torch.manual_seed(torch.initial_seed() % 1000)
x = torch.randn(288, 5)
y = x.sum(1, keepdim=True)
if BAD >= 0:  # in the second of the step's batches
    y[(BAD * MICRO + 1) * ROWS + 2] = torch.nan
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), ROWS, shuffle=BAD < 0)


def batches():
    if KIND == "loader":
        yield from loader
    for _ in range(MICRO * STEPS if KIND == "drawn" else 0):
        order = torch.randperm(len(x))[:ROWS]
        yield x[order], y[order]


for number, (rows, labels) in enumerate(batches()):
    loss = ((model(rows) - labels) ** 2).mean() / MICRO
    loss.backward()
    if number % MICRO == MICRO - 1:
        optimizer.step()
        optimizer.zero_grad()
print([float(parameter.detach().sum()) for parameter in model.parameters()])
