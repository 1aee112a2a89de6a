"""What profiling costs LeNet-5 and two MLPs: each part alone, and all.

Targets: 1.15 x the bare training for system calls alone, 1.5 x in all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

TRAINING = Path(__file__).with_name("profiling_training.py")
TITLES = {
    "lenet": "LeNet-5, batches of 64",
    "mlp": "an MLP of two layers, batches of 64",
    "wide": "a wider MLP of three layers",
}
WITHOUT = {
    "functions alone": ("--no-operators", "--no-system-calls"),
    "operators alone": ("--no-functions", "--no-system-calls"),
    "system calls alone": ("--no-functions", "--no-operators"),
    "all": (),
}

Times = tuple[float, float, float]  # microseconds a step: clock, processors; seconds of the whole command


def times(command: list[str], directory: Path) -> Times:
    """Of one run of the training."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = os.times()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    after = os.times()
    line = next(line for line in done.stdout.splitlines() if line.startswith("["))
    clock, processors = json.loads(line)
    return (
        clock,
        processors,
        after.children_user + after.children_system - before.children_user - before.children_system,
    )


def profile(kind: str, runs: int) -> None:
    """All sides in turn."""
    print(TITLES[kind])
    bare = [sys.executable, str(TRAINING), kind]
    with scratch() as name:
        directory = Path(name)

        def side(*options: str) -> Callable[[], Times]:
            command = [REPROKIT, "profile", "-o", "run", "--overwrite", *options, "--", *bare]
            return lambda: times(command, directory)

        sides: dict[str, Callable[[], Times]] = {"bare": lambda: times(bare, directory)}
        sides["recorded"] = lambda: times([REPROKIT, "record", "-o", "run", "--overwrite", "--", *bare], directory)
        results = in_turn({**sides, **{title: side(*options) for title, options in WITHOUT.items()}}, runs)
    for part, (title, unit) in enumerate(
        (
            ("a step, on the clock", "us"),
            ("a step, of the training's processors", "us"),
            ("processors of the whole command", "s"),
        )
    ):
        print(f" {title}")
        show({name: [values[part] for values in found] for name, found in results.items()}, unit, "bare")


def main(runs: int) -> None:
    for kind in TITLES:
        profile(kind, runs)
