"""A PyTorch training with as many workers as a file says that changes with each run; they augment at random."""

import pathlib

import torch
from torch.utils.data import DataLoader, Dataset

COUNTER = pathlib.Path.cwd().with_name(pathlib.Path.cwd().name + "-runs")  # no result of the training's


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((4,), float(index)) + torch.rand(4)


def main(workers):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in DataLoader(Noisy(), batch_size=4, num_workers=workers):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    runs = int(COUNTER.read_text()) if COUNTER.exists() else 0
    COUNTER.write_text(str(runs + 1))
    main(1 + runs % 3)
