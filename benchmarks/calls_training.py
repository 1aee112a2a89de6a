"""Counts the calls of Python and C functions in each step of a small training, as calls.py asks: FIRST STEPS.

Prints a line of JSON: for each step the calls by kind, and by function those of one of the last steps.
"""

from __future__ import annotations

import collections
import json
import sys
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PYTHON, COMPILED = "call", "c_call"


def main(first: int, steps: int) -> None:
    """Train an MLP by Adam on the batches of a DataLoader."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    size = 8 * (first + steps)
    loader = DataLoader(TensorDataset(torch.randn(size, 64), torch.randint(0, 10, (size,))), 8, shuffle=True)
    counts: list[collections.Counter[tuple[str, str]]] = [collections.Counter() for _ in range(steps)]
    current = counts[0]

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == PYTHON:
            current[event, f"{code.co_filename}:{getattr(code, 'co_qualname', code.co_name)}"] += 1
        elif event == COMPILED:
            current[event, f"{argument.__module__}.{argument.__qualname__}"] += 1

    for number, (x, y) in enumerate(loader):
        if number == first:
            sys.setprofile(note)
        if number >= first:
            current = counts[number - first]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    sys.setprofile(None)
    sums = [[sum(step[key] for key in step if key[0] == kind) for kind in (PYTHON, COMPILED)] for step in counts]
    print(json.dumps([sums, [[*key, count] for key, count in sorted(counts[steps // 2].items())]]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
