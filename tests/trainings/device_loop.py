"""Trains on a device by two optimizers, and makes what is not finite in the third step."""

import sys

import torch

device, kind = sys.argv[1:]
if device == "simulated":
    import simulated_device  # noqa: F401


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8, dtype=torch.complex64 if kind == "complex" else None))

    def forward(self, x):
        return self.weight * x


model = torch.nn.Sequential(torch.nn.Identity(), Scale()).to(device)
optimizers = [torch.optim.SGD(model.parameters(), 0.1) for _ in range(2)]
if kind == "without the operator":

    def refuse(*arguments):
        raise NotImplementedError("not implemented for this device")

    torch._amp_foreach_non_finite_check_and_unscale_ = refuse
for step in range(3):
    model.zero_grad()
    x = (torch.rand(8) / (step != 2 or kind == "fine")).to(device)
    y = model(x).abs()
    loss = y.clamp(max=100).sum() if kind == "activation" else y.sum()
    loss.backward()
    if kind != "complex":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
