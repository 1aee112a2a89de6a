"""Trains on a GPU with batches that workers bring in any order and a thread pins; one factor may be another one."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

CHANGED_AT = int(sys.argv[1])  # step; -1: none


class Slow(Dataset):
    """Samples of which some take longer."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.02 * (hash((time.monotonic(), index)) % 3))
        return torch.full((8,), float(index)), torch.tensor(float(index % 2))


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step, (x, y) in enumerate(DataLoader(Slow(), 4, shuffle=True, num_workers=4, pin_memory=True)):
        hidden = model(x.cuda(non_blocking=True))[:, 0]
        hidden = hidden * (2.0 if step == CHANGED_AT else 1.0)
        loss = (hidden - y.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()
