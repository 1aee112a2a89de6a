"""Updates by closures: of PyTorch's optimizers, and of one that uses the gradients from before its closure, too."""

from __future__ import annotations

import functools
import sys

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce


class TwoPasses(torch.optim.SGD):
    """Climbs by the gradients it finds, and descends by those that the closure computes there."""

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[no-untyped-def,override]
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad)
        with torch.enable_grad():
            closure()
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad)


class Summed(nn.Module):
    """Returns a tensor that a collective may still be computing."""

    def forward(self, values):  # type: ignore[no-untyped-def]
        return all_reduce(values, "sum", dist.group.WORLD)


torch.manual_seed(0)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
for kind in (torch.optim.SGD, TwoPasses):
    model = nn.Sequential(Summed(), nn.Linear(3, 1, bias=False))
    optimizer = kind(model.parameters(), lr=0.5)

    def closure(model, optimizer, batch):  # type: ignore[no-untyped-def]
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(4):
        evaluate = functools.partial(closure, model, optimizer, torch.randn(8, 3))
        if kind is TwoPasses:
            evaluate()
        optimizer.step(evaluate)
dist.destroy_process_group()
