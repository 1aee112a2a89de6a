"""Trains with dropout and a shuffling loader: STEPS CHANGED [later|paced]; a weight is changed after step CHANGED.

With "later", the weights are changed once more when the training is over. With "paced", steps from the 100th on wait.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, changed = map(int, sys.argv[1:3])
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(80, 8), torch.randint(0, 3, (80,))), 8, shuffle=True)
number = 0
while number < steps:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number == changed:
            with torch.no_grad():
                model[0].weight[0, 0] += 1e-6
        number += 1
        if "paced" in sys.argv and number >= 100:
            time.sleep(0.02)
        if number == steps:
            break
if "later" in sys.argv:
    with torch.no_grad():
        model[0].weight.add_(1)
