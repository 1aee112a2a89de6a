"""Trains and saves model and optimizer at the end of each epoch of eight steps, and goes on from there.

Arguments: KIND EPOCHS, and "exact" to save the generator too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"


def layers(kind: str) -> Sequence[nn.Module]:
    """Return the layers of a small MLP, or of a CNN whose step takes five times as long."""
    if kind == "mlp":
        return nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2)
    convolution = nn.Unflatten(1, (1, 14, 14)), nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
    return *convolution, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 49, 2)


def main(kind: str, epochs: int, *, is_exact: bool) -> None:
    x = torch.randn(256, 10 if kind == "mlp" else 196)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(*layers(kind))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    first = 0
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
        if is_exact:
            torch.set_rng_state(saved["generator"])
    for epoch in range(first, epochs):
        for a, b in DataLoader(TensorDataset(x, y), 32, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}
        torch.save({**saved, "epoch": epoch + 1}, CHECKPOINT)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), is_exact=sys.argv[3:] == ["exact"])
