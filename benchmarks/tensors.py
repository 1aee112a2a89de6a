"""What saving tensors costs a step of two small trainings, and what it costs that a run can be asked: in turn.

Beside the ratios to the bare training stand those of smdebug 1.0.34, measured on the same trainings' sizes.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show
from reprokit import trial

ROOT = Path(__file__).parents[1]
STEPS = {"mlp": 2000, "cnn": 400, "mlp-gpu": 1000, "cnn-gpu": 1000}
SIDES: dict[str, tuple[str, ...]] = {
    "recorded": (),
    "idle": ("--tensors", "all 1000000000"),
    "weights every step": ("--tensors", "weights,biases"),
    "all every 10th step": ("--tensors", "all every=10"),
    "l2 of weights, every step": ("--tensors", "weights,biases reduce=l2"),
}
TARGETS = {
    "mlp": "idle 1.02, weights 1.3, all 1.3 (smdebug: 1.18, 3.81, 2.26)",
    "cnn": "idle 1.02, weights 1.15, all 1.1 (smdebug: 1.07, 1.49, 1.42)",
    "mlp-gpu": "not asked",
    "cnn-gpu": "not asked",
}


def step_times(kind: str, directory: Path, options: tuple[str, ...] | None) -> tuple[float, float]:
    """Microseconds of a step on the clock and of all processors; bare without options."""
    training = [sys.executable, "-m", "benchmarks.tensors_training", kind, str(STEPS[kind])]
    run = directory / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = training if options is None else [REPROKIT, "record", "-o", str(run), *options, "--", *training]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    wall, processors = map(float, done.stdout.split())
    return wall, processors


def training(kind: str, runs: int) -> None:
    """All sides in turn, on the clock and of all processors."""
    print(f"a small {kind.upper()}, one thread, {STEPS[kind]} steps; against recorded at most: {TARGETS[kind]}")
    with scratch() as name:
        of = functools.partial(step_times, kind, Path(name))
        sides: dict[str, Callable[[], tuple[float, float]]] = {"bare": lambda: of(None)}
        sides.update({side: functools.partial(of, options) for side, options in SIDES.items()})
        results = in_turn(sides, runs)
    for part, title in enumerate(("on the clock", "of all processors")):
        print(f" {title}")
        show({side: [pair[part] for pair in pairs] for side, pairs in results.items()}, "us", "recorded")


def reading(runs: int) -> None:
    """Read 200 steps of 800 KB, as a training saved them."""
    print("reading 200 steps of 800 KB; target 0.2 s")
    program = "import torch; m = torch.nn.Linear(2000, 100, bias=False); o = torch.optim.SGD(m.parameters(), 0.1)\n"
    program += "for _ in range(200): m(torch.ones(2000)).sum().backward(); o.step(); o.zero_grad()"
    with scratch() as name:
        run = Path(name, "run")
        command = [
            REPROKIT,
            "record",
            "-q",
            "-o",
            str(run),
            "--tensors",
            "weights",
            "--",
            sys.executable,
            "-c",
            program,
        ]
        subprocess.run(command, check=True, capture_output=True)

        def read() -> float:
            began = time.perf_counter()
            values = trial(run).tensor("weight").values()
            assert len(values) == 200
            return 1e3 * (time.perf_counter() - began)

        show(in_turn({"trial": read}, max(5, runs)), "ms", "trial")


def main(runs: int, kinds: Sequence[str] = tuple(STEPS)) -> None:
    for kind in kinds:
        if kind.endswith("-gpu") and shutil.which("nvidia-smi") is None:
            print(f"{kind}: not measured: there is no GPU")
        else:
            training(kind, runs)
    reading(runs)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
