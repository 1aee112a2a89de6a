"""Accumulates gradients of four samples, of an order that the script draws, and saves also between two updates.

Arguments: what it leaves out: "gradients", "generators" or "flags" (a layer that is frozen from a count of the script's
own).
"""

import os
import random
import sys

import torch

LEFT_OUT, CHECKPOINT = sys.argv[1:], "checkpoint.pt"

random.seed(2)
torch.manual_seed(4)
torch.set_num_threads(1)
inputs = torch.randn(60, 5)
targets = inputs.sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.Dropout(0.2), torch.nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
calls = 0
order = []
if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    calls, order = saved["calls"], saved["order"]
    if "gradients" not in LEFT_OUT:
        for parameter, gradient in zip(model.parameters(), saved["gradients"], strict=True):
            parameter.grad = gradient
    if "flags" not in LEFT_OUT:
        for parameter, flag in zip(model.parameters(), saved["flags"], strict=True):
            parameter.requires_grad_(flag)
    if "generators" not in LEFT_OUT:
        torch.set_rng_state(saved["torch"])
        version, words, following = saved["python"]
        random.setstate((version, tuple(words), following))
while calls < 120:
    if not order:
        order = random.sample(range(60), 60)
    sample = [order.pop()]
    loss = torch.nn.functional.mse_loss(model(inputs[sample]), targets[sample])
    loss.backward()
    calls += 1
    if calls % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    if calls == 40:
        model[0].requires_grad_(False)
    if calls % 30 == 0:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "gradients": [parameter.grad for parameter in model.parameters()],
                "flags": [parameter.requires_grad for parameter in model.parameters()],
                "torch": torch.get_rng_state(),
                "python": random.getstate(),
                "calls": calls,
                "order": order,
            },
            CHECKPOINT,
        )
