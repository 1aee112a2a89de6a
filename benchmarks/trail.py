"""What the trail costs a step of two small trainings (targets: 3 % of a CNN's, 6 % of an MLP's), and on a GPU."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import REPROKIT, scratch, show

TRAINING = Path(__file__).with_name("trail_training.py")
TITLES = {
    "cnn": "a small CNN, one thread; target: at most 3 %",
    "mlp": "a small MLP, one thread; target: at most 6 %",
}
BLOCKS = {"cnn": 1, "mlp": 4}  # pairs of blocks of steps, for each run asked for


def step_times(kind: str, directory: Path, pairs: int) -> list[list[float]]:
    """Microseconds a step without and with the trail, by turns inside one process: see trail_training.py."""
    command = [
        REPROKIT,
        "record",
        "--trail-every",
        "1",
        "-o",
        "run",
        "--",
        sys.executable,
        str(TRAINING),
        kind,
        str(pairs),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]


def bytes_a_step(directory: Path) -> float:
    """Of the last run's trail."""
    from reprokit.run_files.rundir import RunDirectory
    from reprokit.run_files.trails import read

    run = RunDirectory(directory / "run")
    steps = sum(series.count for trail in read(run) for series in trail.series)
    return (run.run.trails.size if run.run.trails is not None else 0) / steps


def training(kind: str, runs: int) -> None:
    """Both sides in turn."""
    print(TITLES[kind])
    with scratch() as name:
        directory = Path(name)
        pairs = step_times(kind, directory, runs * BLOCKS[kind])
        size = bytes_a_step(directory)
    for part, title in enumerate(("on the clock", "of all processors")):
        results = {"--no-trail": [pair[part] for pair in pairs], "trail": [pair[part + 2] for pair in pairs]}
        print(f" {title}")
        show(results, "us", "--no-trail")
        added = [a - b for a, b in zip(results["trail"], results["--no-trail"], strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        print(f"  the trail adds {middle:.1f} us ({low:.1f} to {high:.1f}, the middle half)")
    print(f"  {size:.1f} bytes a step on disk")


def gpu() -> None:
    """The kernel's bandwidth, where there is a GPU."""
    import torch

    from reprokit.agent.pytorch.devices import KernelDigester

    if not torch.cuda.is_available():
        print("no GPU: the kernel's bandwidth was not measured")
        return
    device = torch.device("cuda", 0)
    kernel, count = KernelDigester(torch, device), 8
    tensors = [torch.randn(64 << 20, device=device) for _ in range(count)]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rates = []
    for _ in range(12):
        begin.record()
        kernel.digests(tensors, [1] * count)
        end.record()
        torch.cuda.synchronize()
        rates.append(sum(tensor.nbytes for tensor in tensors) / begin.elapsed_time(end) / 1e6)
    print(f"{torch.cuda.get_device_name(device)}: {count} tensors of 256 MiB; target: 60 % of the memory's bandwidth")
    print(f"  {statistics.median(rates[2:]):.0f} GB/s ({min(rates[2:]):.0f} to {max(rates[2:]):.0f})")


def main(runs: int) -> None:
    for kind in TITLES:
        training(kind, runs)
    gpu()
