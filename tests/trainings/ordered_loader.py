"""A training on batches that a DataLoader gives as its workers come; prints what came out."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Samples that take their time, of a random length that no seed repeats."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(int.from_bytes(os.urandom(1), "big") / 20_000)
        if index == 5 and os.path.exists("hangs"):
            time.sleep(1000)
        return torch.tensor([index / 48])


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for keep in False, True:
        loader = DataLoader(Samples(), batch_size=2, num_workers=2, in_order=False, persistent_workers=keep)
        for _ in range(2):
            for batch in loader:
                optimizer.zero_grad()
                loss = ((model(batch) - batch**2) ** 2).mean()
                loss.backward()
                optimizer.step()
            print(model.weight.item().hex(), flush=True)


if __name__ == "__main__":
    main()
