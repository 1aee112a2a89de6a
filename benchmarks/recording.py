"""Processor time of whole trainings of small steps: bare, recorded without and with the trail, and replayed, in turn.

The time is that of the command and of all that it started. What a training of no more than an epoch takes is its
start, which the second table leaves out: a longer training pays for it once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show
from benchmarks.recording_training import KINDS

TRAINING = Path(__file__).with_name("recording_training.py")
STEPS = {"1.0 ms": 20_032, "2.5 ms": 8_000, "8 steps an epoch": 20_000}
SHORT = {"1.0 ms": 64, "2.5 ms": 64, "8 steps an epoch": 8}  # an epoch


def processor_seconds(command: Sequence[str], directory: Path) -> float:
    """User and system time of a command that must succeed, with all that it waited for."""
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def sides(kind: str, steps: int, directory: Path) -> dict[str, Callable[[], float]]:
    """The ways to run one training."""
    training = [sys.executable, str(TRAINING), kind, str(steps)]
    first, written = f"first-{steps}", ["-o", f"run-{steps}", "--overwrite"]
    commands = {
        "bare": training,
        "--no-trail": [REPROKIT, "record", *written, "--no-trail", "--", *training],
        "recorded": [REPROKIT, "record", *written, "--", *training],
        "replayed": [REPROKIT, "replay", first, *written],
    }
    processor_seconds([REPROKIT, "record", "-o", first, "--", *training], directory)
    return {name: lambda command=command: processor_seconds(command, directory) for name, command in commands.items()}  # type: ignore[misc]


def training(kind: str, runs: int) -> None:
    """Print both tables of one kind."""
    with scratch() as name:
        directory = Path(name)
        short = sides(kind, SHORT[kind], directory)
        whole = sides(kind, STEPS[kind], directory)
        starts = in_turn(short, max(runs, 4))
        results = in_turn(whole, runs, warm_up=0)
    start = {side: statistics.median(times) for side, times in starts.items()}
    print(f"{kind}: {STEPS[kind]} steps, whole trainings")
    show(results, "s", "bare")
    print(f"{kind}: a step without the start of " + ", ".join(f"{side} {start[side]:.2f} s" for side in start))
    microseconds = 1e6 / (STEPS[kind] - SHORT[kind])
    steps = {side: [(time - start[side]) * microseconds for time in times] for side, times in results.items()}
    show(steps, "us", "bare")


def main(runs: int) -> None:
    for kind in KINDS:
        training(kind, runs)
