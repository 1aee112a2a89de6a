"""A model whose parameters are shared out among two ranks (FSDP), one of which meets an infinite gradient at step 4.

torchrun --nproc-per-node=2 captured_shards.py wrapped|distributed
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp


class Root(nn.Module):
    """The gradient is infinite where the input is zero."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8, bias=False)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden) + torch.sqrt((hidden**2).sum(1, keepdim=True))


def sharded(kind):
    torch.manual_seed(1)
    model = Root()
    if kind == "wrapped":
        return fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    return fsdp.fully_shard(model)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, model = dist.get_rank(), sharded(sys.argv[1])
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    data = torch.arange(7 * 8 * 6.0).reshape(7, 8, 6) / 300 + rank
    if rank == 1:
        data[4, 3] = 0
    for batch in data:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    shards = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    is_finite = all(bool(torch.isfinite(shard).all()) for shard in shards)
    sys.stdout.write(f"rank {rank}: finite {is_finite}\n")  # in one piece, as both ranks write to the same pipe
    sys.stdout.flush()
    dist.destroy_process_group()
    os._exit(0)  # as gloo's threads abort one process of ten while it is taken down, without reprokit as well


main()
