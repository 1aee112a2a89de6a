"""Processor time and memory of what reads a long run, many logged numbers, or many outputs."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import REPROKIT

STEPS = """
import torch
torch.set_num_threads(1)
weight, goal = torch.nn.Parameter(torch.zeros(1)), torch.tensor([0.3])
optimizer = torch.optim.SGD([weight], lr=1e-6)
for step in range({size}):
    loss = ((weight - goal) ** 2).sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
LOGGED = """
import ctypes, random, reprokit
random.seed(1)
for step in range({size} // 100):
    reprokit.log(step=step, **{{f"norm of layer {{layer}}": random.random() for layer in range(100)}})
"""
OUTPUTS = """
import os
os.mkdir("results")
for number in range({size}):
    with open(f"results/{{number}}.txt", "w") as file:
        file.write(f"result {{number}}\\n" * 3)
"""
WRAPPER = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
assert status == 0, status
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
COMMANDS = ("show", "verify", "check", "report", "bundle")
RESULTS = {"report": "result.html", "bundle": "result.bundle"}
# Of each run: script, size, and the seconds that the commands may take.
RUNS = {
    "a million steps": (STEPS, 1_000_000, (2, 4, 4, 10, 15)),
    "2 million logged numbers": (LOGGED, 2_000_000, (4, 8, 8, 20, 30)),
    "20,000 outputs": (OUTPUTS, 20_000, (2, 5, 3, 6, 10)),
}


def measured(command: list[str], directory: Path) -> tuple[float, float]:
    """Seconds of processors, and MiB at the most."""
    wrapper = [sys.executable, "-S", "-c", WRAPPER, *command]
    done = subprocess.run(wrapper, cwd=directory, stdout=subprocess.PIPE, text=True, check=True)
    seconds, kibibytes = map(float, done.stdout.split())
    return seconds, kibibytes / 1024


def main(runs: int, share: float) -> None:
    """Print a table for each kind of run; a share of the size takes about that share of the time."""
    for name, (script, size, targets) in RUNS.items():
        with tempfile.TemporaryDirectory(prefix="reprokit-benchmark-") as place:
            directory = Path(place)
            (directory / "train.py").write_text(script.format(size=int(size * share)))
            measured([REPROKIT, "record", "-o", "one", "--", sys.executable, "train.py"], directory)
            shutil.rmtree(directory / "results", ignore_errors=True)
            measured([REPROKIT, "replay", "one", "-o", "two"], directory)
            print(f"{name}{'' if share == 1 else f', {share:g} of them'}:")
            for command, target in zip(COMMANDS, targets, strict=True):
                values = [measured(_arguments(command), directory) for _ in range(runs) if _cleared(directory)]
                seconds = statistics.median(seconds for seconds, _ in values)
                memory = max(memory for _, memory in values)
                print(f"  {command:<8} {seconds:6.1f} s of at most {target} {memory:6.0f} MiB of at most 300")


def _arguments(command: str) -> list[str]:
    sides = ["one", "two"] if command in ("verify", "report") else ["one"]
    return [REPROKIT, command, *sides, *(["-o", RESULTS[command]] if command in RESULTS else [])]


def _cleared(directory: Path) -> bool:
    for name in RESULTS.values():
        (directory / name).unlink(missing_ok=True)
    return True
