"""Trains by loops that fetch batches before the steps that use them, and writes down what each step was given.

Arguments: where to write, and which trainings. A sample's first number says which one it is.
"""

import json
import queue
import sys
import threading

import torch
from torch.utils.data import DataLoader, Dataset

SIZE, BATCH = 40, 8
torch.manual_seed(0)
seen = {}


class Numbered(Dataset):
    """Each sample is its number, and three more."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"x": torch.tensor([index, 1.0, index % 3, index / SIZE]), "y": torch.tensor([1.0])}


class Prefetched:
    """Gives each batch once the next ones are fetched, as changed by a function."""

    def __init__(self, loader, ahead=1, change=lambda batch: batch):
        self.loader, self.ahead, self.change = loader, ahead, change

    def __iter__(self):
        waiting = []
        for batch in self.loader:
            waiting.append(self.change(batch))
            if len(waiting) > self.ahead:
                yield waiting.pop(0)
        yield from waiting


class Threaded:
    """Fetches by a thread of its own, up to some batches ahead."""

    def __init__(self, loader, ahead=2):
        self.loader, self.ahead = loader, ahead

    def __iter__(self):
        batches = queue.Queue(self.ahead)

        def fetch():
            for batch in self.loader:
                batches.put(batch)
            batches.put(None)

        threading.Thread(target=fetch, daemon=True).start()
        return iter(batches.get, None)


def loader(**options):
    return DataLoader(Numbered(), BATCH, shuffle=True, **options)


def train(name, batches, epochs=2, every=1, limit=SIZE, given=lambda batch: (batch["x"],), second=False):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    check = DataLoader(Numbered(), BATCH)
    steps, pending = seen.setdefault(name, []), []
    for _ in range(epochs):
        for number, batch in enumerate(batches):
            if number == limit:
                break
            pending += batch["x"][:, 0].round().int().tolist()
            loss = model(*given(batch)).square().mean()
            if second:  # a model is called with what no loader gave
                loss = loss + model(torch.rand(2, 4)).mean()
            loss.backward()
            if (number + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
                steps.append(pending)
                pending = []
            if number == 2:
                with torch.no_grad():
                    for rows in check:
                        model(rows["x"])


def changed(batch):
    return {**batch, "x": batch["x"] + 0.0}


trainings = {
    "ahead": lambda: train("ahead", Prefetched(loader())),
    "far": lambda: train("far", Prefetched(loader(num_workers=1), 3)),
    "accumulated": lambda: train("accumulated", Prefetched(loader()), every=2, limit=4),
    "threaded": lambda: train("threaded", Threaded(loader())),
    "whole": lambda: train("whole", Prefetched(loader(), SIZE)),
    "sliced": lambda: train("sliced", Prefetched(loader()), given=lambda batch: (batch["x"][1:],)),
    "twice": lambda: train("twice", Prefetched(loader()), second=True),
    "broken": lambda: train("broken", Prefetched(loader()), limit=3),
    "changed": lambda: train("changed", Prefetched(loader(), 1, changed)),
    "plain": lambda: train("plain", loader(), given=lambda batch: (batch["x"] + 0.0,)),
}
for name in sys.argv[2:] or trainings:
    trainings[name]()
with open(sys.argv[1], "w") as file:
    json.dump(seen, file)
