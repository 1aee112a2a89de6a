"""Trains a small MLP on batches of a DataLoader with one thread, as recording.py asks: KIND STEPS."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KINDS = {  # sizes of the layers, samples, samples a batch
    "0.3 ms": ((32, 16, 10), 2048, 16),
    "1.0 ms": ((64, 128, 128, 10), 4096, 64),
    "2.5 ms": ((64, 256, 256, 256, 10), 8192, 128),
    "6 ms": ((128, 512, 512, 10), 4096, 256),
    "33 ms": ((256, 1024, 1024, 1024, 10), 4096, 256),
    "8 steps an epoch": ((64, 128, 128, 10), 512, 64),
}


def steps_of(kind: str) -> Iterator[None]:
    """One step after the other, without end."""
    sizes, samples, batch = KINDS[kind]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    linear = [nn.Linear(left, right) for left, right in itertools.pairwise(sizes)]
    model = nn.Sequential(*[layer for one in linear[:-1] for layer in (one, nn.ReLU())], linear[-1])
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(samples, sizes[0]), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch, shuffle=True)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            yield


def main(kind: str, steps: int) -> None:
    for _ in itertools.islice(steps_of(kind), steps):
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
