"""Computes in workers of a loader, and trains with one rank."""

import os

import torch
import torch.distributed as distributed
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((3,), float(index)).lgamma()


distributed.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
distributed.all_reduce(torch.ones(2))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in DataLoader(Data(), 4, num_workers=2):
    optimizer.zero_grad()
    net(batch).sum().backward()
    optimizer.step()
distributed.destroy_process_group()
print("done")
