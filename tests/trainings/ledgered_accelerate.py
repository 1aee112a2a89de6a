"""Trains by loaders of accelerate, which fetch a batch ahead, and writes down what each step was given.

Arguments: how batches look, and of how many each step is.
"""

import json
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

torch.manual_seed(0)


class Copied:
    """A batch that comes to its device by a copy."""

    def __init__(self, rows):
        self.rows = rows

    def to(self, *arguments, **keywords):
        return Copied(self.rows.clone())


KINDS = {
    "tensor": (None, lambda batch: batch),
    "copied": (lambda rows: Copied(torch.stack(rows)), lambda batch: batch.rows),
    "dict": (lambda rows: {"x": torch.stack(rows)}, lambda batch: batch["x"]),
}
collate, rows_of = KINDS[sys.argv[1]]
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=int(sys.argv[2]))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(list(torch.arange(28.0)[:, None]), batch_size=4, shuffle=True, collate_fn=collate)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps, pending = [], []
for _ in range(2):
    for batch in loader:
        with accelerator.accumulate(model):
            pending += rows_of(batch).flatten().int().tolist()
            accelerator.backward(model(rows_of(batch)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps.append(pending)
            pending = []
with open("seen.json", "w") as file:
    json.dump({"steps": steps}, file)
