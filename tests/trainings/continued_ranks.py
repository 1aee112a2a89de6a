"""Data-parallel training over gloo, by torchrun or spawned: ranks shuffle, drop out, log and save a checkpoint."""

import os
import socket
import sys
import time

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = int(sys.argv[1])


def train():
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    x = torch.randn(72, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    own_log = open(f"rank{rank}.csv", "a")  # noqa: SIM115
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(epoch, total.item(), file=own_log)
        distributed.all_reduce(total)
        print(f"rank {rank}, epoch {epoch}: {total.item()}")
        if rank == 0:
            torch.save(net.state_dict(), f"epoch-{epoch // 3}.pt")
            with open("log.csv", "a") as log:
                print(epoch, total.item(), file=log)
        distributed.barrier()
        while os.path.exists(f"hold-{epoch + 1}"):  # until it is killed
            time.sleep(0.01)
    sys.stdout.flush()
    own_log.close()
    distributed.barrier()
    # gloo's threads sometimes abort the process while it is taken down, without reprokit as well.
    os._exit(0)


def spawned(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        multiprocessing.spawn(spawned, (free_port(),), 2)
