"""Two ranks, each on a device of its own, of which one has a loss that is not finite, later one a module's output.

torchrun device_ranks.py DEVICE: cpu, cuda, or simulated. In the third step it is the loss of rank 1, in the fifth an
output on rank 0, which spoils neither loss nor gradients. Gradients are reduced by the script.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

if sys.argv[1] == "simulated":
    import simulated_device  # noqa: F401


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Identity(), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x).nan_to_num(posinf=1.0))


def main(device):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(6):
        optimizer.zero_grad()
        x = torch.rand(8, 4) + rank
        if (step, rank) == (4, 0):
            x[0] = float("inf")
        loss = model(x.to(device)).sum()
        if (step, rank) == (2, 1):
            loss = loss + float("inf")
        loss.backward()
        for parameter in model.parameters():
            whole = parameter.grad.cpu()
            dist.all_reduce(whole)
            parameter.grad.copy_(whole)
        optimizer.step()
    weight = model.last.weight.detach().cpu().tolist()
    sys.stdout.write(f"trained {rank} {weight}\n")  # in one piece, as both ranks write to the same pipe
    sys.stdout.flush()
    dist.destroy_process_group()
    os._exit(0)  # as gloo's threads abort one process of ten while it is taken down, without reprokit as well


if __name__ == "__main__":
    main(*sys.argv[1:])
