"""Trains by all kinds of loaders, each with an optimizer of its own, and writes down what each step was given.

Arguments: the seed, where to write, and which trainings. A sample's first number says which one it is.
"""

import io
import json
import sys
import tarfile

import torch
import webdataset
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, WeightedRandomSampler

SIZE, BATCH = 40, 8
torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[1]))
seen = {}


class Numbered(Dataset):
    """Each sample is its number, and three more."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.tensor([index, 1.0, index % 3, index / SIZE])


class Keyed(Numbered):
    """Its samples go by names."""

    def __getitem__(self, name):
        return super().__getitem__(int(name.partition("-")[2]))


class Streamed(IterableDataset):
    """Each worker gives all samples, or its own ones."""

    def __init__(self, shared):
        self.shared = shared

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.shared else (0, 1)
        return map(Numbered().__getitem__, range(first, SIZE, step))


class Doubled:
    """A sampler that chooses two samples twice, and two never."""

    def __iter__(self):
        return iter([0, 1, *range(SIZE - 2)])

    def __len__(self):
        return SIZE


def shard():
    """A file of WebDataset's."""
    with tarfile.open("shard-0.tar", "w") as archive:
        for number in range(SIZE):
            data = json.dumps([number, 1, 2, 3]).encode()
            header = tarfile.TarInfo(f"sample{number}.json")
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return webdataset.WebDataset("shard-0.tar", shardshuffle=False).decode()


def train(name, loader, epochs=2, every=1):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    check = DataLoader(Numbered(), BATCH)
    steps, pending = seen.setdefault(name, []), []
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            rows = torch.stack(batch["json"], 1).float() if isinstance(batch, dict) else batch
            rows = rows[None] if rows.ndim == 1 else rows
            pending += rows[:, 0].int().tolist()
            model(rows).square().mean().backward()
            if (number + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
                steps.append(pending)
                pending = []
        with torch.no_grad():
            for rows in check:
                model(rows)
    for _ in check:  # is no part of any step
        pass


numbered = Numbered()
weights = [1.0 + 9 * (index < 4) for index in range(SIZE)]
once = {"epochs": 1}
trainings = {
    "shuffled": lambda: train("shuffled", DataLoader(numbered, BATCH, shuffle=True)),
    "workers": lambda: train("workers", DataLoader(numbered, 12, shuffle=True, num_workers=2, drop_last=True)),
    "persistent": lambda: train(
        "persistent", DataLoader(numbered, 7, shuffle=True, num_workers=2, persistent_workers=True)
    ),
    "accumulated": lambda: train("accumulated", DataLoader(numbered, 4, shuffle=True), every=5),
    "batches": lambda: train("batches", DataLoader(numbered, batch_sampler=BatchSampler(range(SIZE), 10, False))),
    "single": lambda: train("single", DataLoader(numbered, None, shuffle=True), **once),
    "weighted": lambda: train("weighted", DataLoader(numbered, BATCH, sampler=WeightedRandomSampler(weights, SIZE))),
    "doubled": lambda: train("doubled", DataLoader(numbered, BATCH, sampler=Doubled()), **once),
    "named": lambda: train("named", DataLoader(Keyed(), BATCH, sampler=[f"item-{i}" for i in range(SIZE)]), **once),
    "streamed": lambda: train("streamed", DataLoader(Streamed(shared=True), BATCH, num_workers=2)),
    "copied": lambda: train("copied", DataLoader(Streamed(shared=False), BATCH, num_workers=2), **once),
    "archive": lambda: train("archive", DataLoader(shard(), BATCH), **once),
}
for name in sys.argv[3:] or trainings:
    trainings[name]()
with open(sys.argv[2], "w") as file:
    json.dump(seen, file)
print("done")
