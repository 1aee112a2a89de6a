"""Trains a small CNN or MLP and prints microseconds a step: on the clock, and of all processors. See trail.py."""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, WARM = 12, 3


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """Some 8 ms a step."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return model, torch.randn(1024, 1, 28, 28)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """Some 1.4 ms a step."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.randn(4096, 64)


def main(kind: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = {"cnn": cnn, "mlp": mlp}[kind]()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(x, torch.randint(0, 10, (len(x),))), 64, shuffle=True)
    times = []
    for _ in range(EPOCHS):
        begin = time.perf_counter(), time.process_time()
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
        times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    print(*(1e6 * statistics.median(part) / len(loader) for part in zip(*times[WARM:], strict=True)))


main(sys.argv[1])
