"""Readers in threads with a bounded queue, and classes whose weights change while it trains; prints the weights."""

import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

FILES, RECORDS, CLASSES, SIZE = 6, 20, 3, 90
torch.set_num_threads(1)


class ListedFiles(IterableDataset):
    """Three threads read the files of a listing; whoever is first has its record trained on first."""

    def __iter__(self):
        listing, records = queue.Queue(), queue.Queue(10)
        for number in range(FILES):
            listing.put(number)
        readers = [threading.Thread(target=self.read, args=(listing, records)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(FILES * RECORDS):
            yield records.get()
        for reader in readers:
            reader.join()

    def read(self, listing, records):
        while True:
            try:
                number = listing.get_nowait()
            except queue.Empty:
                return
            for record in range(RECORDS):
                records.put(torch.tensor([number, record, 1.0]))


class Classified(Dataset):
    """The class of a sample is its index modulo the number of classes; that of the last class is learned late."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        kind = index % CLASSES
        return nn.functional.one_hot(torch.tensor(kind), CLASSES).float() * (0.1 if kind == CLASSES - 1 else 1.0), kind


def step(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def read_by_threads():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for rows in DataLoader(ListedFiles(), 8):
        step(optimizer, model(rows).square().mean())
    print(model.weight.detach().numpy().tobytes().hex())


def boost():
    """After each epoch the class with the largest loss is drawn three times as often."""
    model = nn.Linear(CLASSES, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights = torch.ones(SIZE, dtype=torch.double)
    loader = DataLoader(Classified(), 9, sampler=WeightedRandomSampler(weights, SIZE))
    for _ in range(4):
        losses = torch.zeros(CLASSES)
        for rows, kinds in loader:
            each = nn.functional.cross_entropy(model(rows), kinds, reduction="none")
            losses.index_add_(0, kinds, each.detach())
            step(optimizer, each.mean())
        counted = torch.bincount(torch.arange(SIZE) % CLASSES).float()
        worst = int((losses / counted).argmax())
        loader.sampler.weights[worst::CLASSES] *= 3
        print(worst, model.weight.detach().numpy().tobytes().hex())


read_by_threads()
boost()
