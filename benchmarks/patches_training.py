"""Trains a small model under patches alone, and prints what a step takes: microseconds on the clock, of all processors.

The fastest of some rounds counts: on a machine that does something else, threads wait for each other by turns.

Arguments: lenet, mlp, index or compiled, with `-gpu` on a GPU; patches as `record --patch` takes them, or none. Their
variables are the caller's business: see patches.py.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reprokit.agent.core.import_hooks import ImportWatcher
from reprokit.agent.patches import Patches, RequestedPatch
from reprokit.patches import parse

ROUNDS, WARM, STEPS = 12, 2, 6
ROWS, WIDTH, PER_BATCH = 1000, 64, 20000


class Alone:
    """Stands in for an agent that does nothing but apply patches."""

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @property
    def journal(self) -> Alone:
        return self

    def write(self, kind: str, fields: dict[str, Any], aside: bool = False) -> None:
        if fields["state"] != "applied":
            raise SystemExit(f"{kind} {fields['id']}: {fields['why']}")


def patch(texts: str) -> None:
    """Apply patches when their modules come."""
    entries = [
        {"id": chosen.patch.id, "value": chosen.value, "framework": chosen.patch.framework}
        for chosen in parse([] if texts == "none" else [texts])
    ]
    patches = Patches(Alone(), [RequestedPatch(entry) for entry in entries])  # type: ignore[arg-type]
    sys.meta_path.insert(0, ImportWatcher(patches.modules, patches.loaded, print))


@dataclass
class Training:
    """A model, its batches, and what of the model's answer is the loss."""

    model: Any
    batches: list[tuple[Any, Any]]
    loss: Callable[[Any, Any], Any]


def lenet(torch: Any) -> Training:
    """LeNet-5."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    )  # fmt: skip
    batches = [(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))) for _ in range(STEPS)]
    return Training(model, batches, nn.functional.cross_entropy)


def mlp(torch: Any) -> Training:
    """Three layers."""
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    batches = [(torch.randn(64, 64), torch.randint(0, 10, (64,))) for _ in range(STEPS)]
    return Training(model, batches, nn.functional.cross_entropy)


def convolutions(torch: Any) -> Training:
    """Wide convolutions with batch normalization, whose algorithms cuDNN chooses."""
    nn = torch.nn

    def part(before: int, after: int) -> list[Any]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    model = nn.Sequential(*part(3, 64), *part(64, 128), *part(128, 256), nn.Flatten(), nn.Linear(4096, 10))
    batches = [(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))) for _ in range(STEPS)]
    return Training(model, batches, nn.functional.cross_entropy)


def index(torch: Any) -> Training:
    """Rows of a table read by x[rows], and layers big enough to want both threads."""
    nn = torch.nn

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(ROWS, WIDTH))
            self.layers = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 16))

        def forward(self, rows: Any) -> Any:
            return self.layers(self.table[rows])

    batches = [(torch.randint(0, ROWS, (PER_BATCH,)), torch.randn(PER_BATCH, 16)) for _ in range(STEPS)]
    return Training(Model(), batches, nn.functional.mse_loss)


def compiled(torch: Any) -> Training:
    """A compiled sum by index_add, which threads race for only then."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(WIDTH))

        def forward(self, batch: Any) -> Any:
            rows, values = batch
            return torch.zeros(ROWS, WIDTH).index_add(0, rows, values * self.scale)

    batches = [
        ((torch.randint(0, ROWS, (PER_BATCH,)), torch.randn(PER_BATCH, WIDTH)), torch.randn(ROWS, WIDTH))
        for _ in range(STEPS)
    ]
    return Training(torch.compile(Model()), batches, torch.nn.functional.mse_loss)


def main(kind: str, texts: str) -> None:
    patch(texts)
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1 if kind in ("lenet", "mlp") else 2)
    on_gpu = kind.endswith("-gpu")
    kind = kind.removesuffix("-gpu")
    training = {"lenet": lenet, "mlp": mlp, "index": index, "compiled": compiled, "convolutions": convolutions}[kind](
        torch
    )
    if on_gpu:
        training.model.cuda()
        training.batches = [(x.cuda(), y.cuda()) for x, y in training.batches]
    optimizer = torch.optim.Adam(training.model.parameters())
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter(), time.process_time()
        for x, y in training.batches:
            optimizer.zero_grad()
            training.loss(training.model(x), y).backward()
            optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    steps = len(training.batches)
    print(json.dumps([1e6 * min(part) / steps for part in zip(*times[WARM:], strict=True)]))


main(sys.argv[1], sys.argv[2])
