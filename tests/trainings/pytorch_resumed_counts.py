"""Saves the model, the optimizer and PyTorch's generator after each epoch, but not what the script itself counts.

Argument: what that decides. "weight" of the loss, learning "rate", "order" of the samples, or "patience". With "loop" a
for loop counts. Nothing is counted with "clamped": its weights are changed behind each update.
"""

import itertools
import os
import random
import sys

import torch

KIND, CHECKPOINT, EPOCHS = sys.argv[1], "checkpoint.pt", 8
PASSWORD = "not-to-be-saved"


class Order(torch.utils.data.Sampler):
    """An order from a generator of its own."""

    def __init__(self):
        self.generator = random.Random(9)

    def __len__(self):
        return 64

    def __iter__(self):
        return iter(self.generator.sample(range(64), 64))


torch.manual_seed(3)
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, 8, sampler=Order() if KIND == "order" else None)
numbers = itertools.accumulate(itertools.repeat(1))  # nobody can set where it is
epoch = steps = 0
if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["generator"])
    epoch = saved["epoch"]
while epoch < EPOCHS and not (KIND == "patience" and steps >= 40):
    for inputs, targets in loader:
        steps += 1
        number = next(numbers)
        loss = torch.nn.functional.mse_loss(model(inputs), targets) * {"weight": steps, "loop": number}.get(KIND, 1)
        optimizer.zero_grad()
        loss.backward()
        if KIND == "rate":
            optimizer.param_groups[0]["lr"] = 0.01 / steps
        optimizer.step()
        if KIND == "clamped":
            torch._foreach_clamp_max_([parameter.data for parameter in model.parameters()], 0.2)
    epoch += 1
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}
    torch.save({**states, "epoch": epoch}, CHECKPOINT)
