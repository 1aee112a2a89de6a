"""What a recorded step of a training on a GPU costs: bare, with each part of a recording, and captured, on the clock.

Each side is a process of its own, which trains all the time; they take turns, a block of steps each.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.capture import Training
from benchmarks.measure import REPROKIT, in_turn, scratch, show

TITLES = {
    "gpu-mlp": "a small MLP",
    "gpu": "a CNN whose data lie on the GPU",
    "gpu-transformer": "a transformer of four layers",
}
SIDES = {
    "bare": (),
    "ledger": ("record", "--no-trail"),
    "trail and ledger": ("record",),
    "all weights each step": ("record", "--tensors", "weights,biases"),
    "--on-nan capture": ("run", "--on-nan", "capture"),
}
BLOCKS = 6  # of each process, for each run asked for
PROCESSES = 2  # of each side, one after the other: where memory lies makes a difference too


def measured(kind: str, runs: int) -> dict[str, list[float]]:
    """Microseconds of a step, by sides."""
    results: dict[str, list[float]] = {}
    for _ in range(PROCESSES):
        with scratch() as name, ExitStack() as stack:
            sides = {}
            for side, options in SIDES.items():
                directory = Path(name, side.replace(" ", "-"))
                directory.mkdir()
                command = [sys.executable, "-m", "benchmarks.capture_training", kind]
                sides[side] = Training([REPROKIT, *options, "--", *command] if options else command, directory)
                stack.callback(sides[side].close)
            blocks = {side: training.block for side, training in sides.items()}
            for side, times in in_turn(blocks, BLOCKS * runs, warm_up=2).items():
                results.setdefault(side, []).extend(wall for wall, _ in times)
    return results


def main(runs: int) -> None:
    """Each training."""
    if shutil.which("nvidia-smi") is None:
        print("not measured: there is no GPU")
        return
    for kind, title in TITLES.items():
        print(f"{title}, on the clock, eight steps together", flush=True)
        show({side: [time / 8 for time in times] for side, times in measured(kind, runs).items()}, "us a step", "bare")
