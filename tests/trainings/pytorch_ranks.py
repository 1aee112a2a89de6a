"""Data-parallel training over gloo, started by torchrun: each rank draws its own data and its own noise."""

import hashlib
import os
import time

import torch
import torch.distributed as distributed
from torch import nn


def main():
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(10, 32, 8)
    corrupted = int(os.environ.get("CORRUPTED", "-1"))  # before this step a bit of rank 1's weights flips
    races = int(os.environ.get("RACES", "-1"))  # before this step rank 1's weights take something from the clock
    hangs = int(os.environ.get("HANGS", "-1"))  # before this step rank 1 stops until its launcher is gone
    launcher = os.getppid()
    for step, batch in enumerate(batches):
        while step == hangs and rank == 1 and os.getppid() == launcher:
            time.sleep(0.1)
        if step == races and rank == 1:
            with torch.no_grad():
                model.module[2].bias += time.perf_counter_ns() % 1000 * 1e-4
        if step == corrupted and rank == 1:
            with torch.no_grad():
                model.module[2].bias += 1e-7
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(weights + batches.numpy().tobytes()).hexdigest()
    result = f"{rank} {loss.item()!r} {digest}"
    with open(os.path.join(os.environ["RESULTS"], f"rank{rank}.txt"), "w") as file:
        file.write(result)
    distributed.barrier()
    # gloo's threads sometimes abort the process while it is taken down, without reprokit as well.
    os._exit(0)


if __name__ == "__main__":
    main()
