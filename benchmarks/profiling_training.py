"""Trains LeNet-5 or one of two MLPs for hundreds of steps, and prints microseconds a step: clock and processors."""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional

STEPS = {"lenet": 400, "mlp": 2000, "wide": 1500}


class LeNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """LeNet-5 for images of 28 x 28."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.layers = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        images = functional.max_pool2d(functional.relu(self.first(images)), 2)
        images = functional.max_pool2d(functional.relu(self.second(images)), 2)
        result: torch.Tensor = self.layers(images.flatten(1))
        return result


def model_and_inputs(kind: str) -> tuple[nn.Module, torch.Tensor]:
    """What is trained, and its batch of 64."""
    if kind == "lenet":
        return LeNet(), torch.randn(64, 1, 28, 28)
    if kind == "wide":
        layers = nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 10)
        return nn.Sequential(*layers), torch.randn(64, 128)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), torch.randn(64, 64)


def main(kind: str) -> None:
    """Train, and print the mean of all steps."""
    torch.manual_seed(1)
    model, inputs = model_and_inputs(kind)
    labels = torch.randint(0, 10, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    clock, processors = time.perf_counter(), time.process_time()
    for _ in range(STEPS[kind]):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    print(
        json.dumps(
            [(time.perf_counter() - clock) * 1e6 / STEPS[kind], (time.process_time() - processors) * 1e6 / STEPS[kind]]
        )
    )


main(sys.argv[1])
