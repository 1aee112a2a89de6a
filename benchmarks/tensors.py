"""What saving tensors adds to a recorded step of two small trainings, off and on in turn within one process."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show
from reprokit import trial

ROOT = Path(__file__).parents[1]
PAIRS = 32  # of blocks of steps, for each run asked for
SIDES = {
    "idle": "all 1000000000",
    "weights every step": "weights,biases",
    "all every 10th step": "all every=10",
    "l2 of weights, every step": "weights,biases reduce=l2",
}
TARGETS = {
    "mlp": "idle 1.02, weights 1.3, all 1.3, l2 1.03 (smdebug against bare: 1.18, 3.81, 2.26)",
    "cnn": "idle 1.02, weights 1.15, all 1.1, l2 1.03 (smdebug against bare: 1.07, 1.49, 1.42)",
    "mlp-gpu": "not asked",
    "cnn-gpu": "not asked",
}


def block_pairs(kind: str, directory: Path, rule: str, pairs: int) -> list[tuple[float, float]]:
    """Microseconds that a step takes without saving and with it, by pairs of blocks."""
    training = [sys.executable, "-m", "benchmarks.tensors_training", kind, str(pairs)]
    command = [REPROKIT, "record", "--overwrite", "-o", str(directory / "run"), "--tensors", rule, "--", *training]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(float(without), float(saved)) for without, saved in lines]


def training(kind: str, runs: int) -> None:
    """Each rule in processes of its own: the median ratio within pairs, the middle half, and the standard error."""
    what = "on the clock" if kind.endswith("-gpu") else "of all processors"
    print(f"a small {kind.upper()}, one thread, {what}; at most: {TARGETS[kind]}")
    with scratch() as name:
        for side, rule in SIDES.items():
            pairs = [pair for _ in range(runs) for pair in block_pairs(kind, Path(name), rule, PAIRS)]
            ratios = [saved / without for without, saved in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
            step = statistics.median(without for without, _ in pairs)
            spread = f"{low:.3f} to {high:.3f}, +- {error:.3f}, {len(pairs)} pairs"
            print(f"  {side:<26} {middle:.3f} x of {step:.0f} us ({spread})", flush=True)


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


def main(runs: int, kinds: Sequence[str] = tuple(TARGETS)) -> None:
    for kind in kinds:
        if kind.endswith("-gpu") and shutil.which("nvidia-smi") is None:
            print(f"{kind}: not measured: there is no GPU")
        else:
            training(kind, runs)
    reading(runs)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
