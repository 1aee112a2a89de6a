"""Trains a small CNN or MLP with the trail off and on in turn, and prints microseconds a step. See trail.py.

A line for each two blocks of steps: without and with the trail on the clock, then the same of all processors.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BLOCK = 32  # steps with the trail, then as many without
WARM = 4  # of them that are not counted


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


def switch() -> Callable[[bool], None]:
    """Turns the trail of the agent in this process off and on."""
    trail = next(one for one in gc.get_objects() if type(one).__name__ == "StepTrail")
    events, listeners = trail._events, trail._events._listeners

    def turn(on: bool) -> None:
        trail._wait_for_all()
        events._listeners = listeners if on else tuple(one for one in listeners if one is not trail)
        events.arrange()

    return turn


def steps(kind: str, device: str = "cpu") -> Iterator[None]:
    """One step after the other, without end."""
    model, x = {"cnn": cnn, "mlp": mlp}[kind]()
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(x, torch.randint(0, 10, (len(x),))), 64, shuffle=True)
    while True:
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a.to(device)), b.to(device)).backward()
            optimizer.step()
            yield


def block(training: Iterator[None]) -> tuple[float, float]:
    """The median microseconds of a step, on the clock and of all processors."""
    walls, processors = [], []
    for number in range(BLOCK):
        begin = time.perf_counter(), time.process_time()
        next(training)
        if number >= WARM:
            walls.append(time.perf_counter() - begin[0])
            processors.append(time.process_time() - begin[1])
    return 1e6 * statistics.median(walls), 1e6 * statistics.median(processors)


def main(kind: str, pairs: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training = steps(kind)
    block(training)
    turn = switch()
    for _ in range(pairs):
        turn(False)
        without = block(training)
        turn(True)
        print(*without, *block(training))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
