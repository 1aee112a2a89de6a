"""Trains a CNN or an MLP bare, with its operators logged, and with torch's DebugMode, blocks of steps in turn.

A kind that ends in -gpu is trained there, and measured on the clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._debug_mode import DebugMode

from reprokit.agent.operators.log import CallLog
from reprokit.agent.operators.pytorch.log import PytorchCalls
from reprokit.core import native

BLOCK = 20  # steps


def training(kind: str) -> Callable[[], None]:
    """A step of the training."""
    device = "cuda" if kind.endswith("-gpu") else "cpu"
    if kind.startswith("cnn"):
        convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1)]
        layers = [nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 14 * 14, 10)]
        model, inputs = nn.Sequential(*convolutions, *layers), torch.randn(32, 1, 28, 28)
    else:
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        inputs = torch.randn(64, 64)
    model, inputs = model.to(device), inputs.to(device)
    labels = torch.randint(0, 10, (len(inputs),), device=device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def logged(log: CallLog, calls: PytorchCalls) -> Callable[[], Any]:
    """Return a context in which operators are logged."""

    @contextlib.contextmanager
    def context() -> Any:
        calls.watch(True)
        try:
            yield
        finally:
            log._files.write()
            calls.watch(False)

    return context


def operator_log(directory: str) -> CallLog:
    """A log as an agent has it."""
    Path(directory, "plan.json").write_text(json.dumps({"library": str(native.trail_path())}))
    Path(directory, "answers").mkdir()
    agent: Any = SimpleNamespace(run=directory, journal=SimpleNamespace(identity="0"), warn=print, failed=print)
    return CallLog(agent, {"steps": {"first": 1 << 30}, "operators": {}})


def main(kind: str, runs: int) -> None:
    """Print microseconds a step of each side."""
    torch.set_num_threads(1)
    step = training(kind)
    is_on_gpu = kind.endswith("-gpu")
    now = time.perf_counter if is_on_gpu else time.process_time
    with tempfile.TemporaryDirectory() as directory:
        log = operator_log(directory)
        calls = PytorchCalls(log, torch)

        @contextlib.contextmanager
        def debugged() -> Any:
            with DebugMode() as mode, mode.log_tensor_hashes(hash_inputs=True):
                yield

        sides = {"bare": contextlib.nullcontext, "logged": logged(log, calls), "DebugMode": debugged}
        results: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(runs + 1):
            for name, context in sides.items():
                with context():
                    began = now()
                    for _ in range(BLOCK):
                        step()
                    if is_on_gpu:
                        torch.cuda.synchronize()
                    took = (now() - began) * 1e6 / BLOCK
                if number:
                    results[name].append(took)
        count = os.path.getsize(next(Path(directory, "answers").glob("*.calls"))) // 32
    print(json.dumps({"operators": count // (BLOCK * (runs + 1)), **results}))


main(sys.argv[1], int(sys.argv[2]))
