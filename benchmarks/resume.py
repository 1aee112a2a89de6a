"""What the whole of `reprokit resume` takes beside one training of that length: processor time. Target: 3.3 x."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

TRAINING = Path(__file__).parents[1] / "tests" / "trainings" / "pytorch_resumed_epochs.py"
EPOCHS = "1200"  # of eight steps


def main(runs: int) -> None:
    """A checkpoint that lacks one part, which is put in and proved, and an exact one; interrupted in the middle."""
    command = [sys.executable, "train.py", EPOCHS]
    resume = [REPROKIT, "resume", "-o", "runs", "--", *command]
    sides = {
        "bare": _measured(command, 0),
        "resume": _measured(resume, 1),
        "resume, exact": _measured([*resume, "exact"], 0),
    }
    show(in_turn(sides, max(1, runs // 8), warm_up=0), "s", "bare")


def _measured(command: Sequence[str], status: int) -> Callable[[], float]:
    def measure() -> float:
        with scratch() as directory:
            shutil.copy(TRAINING, Path(directory, "train.py"))
            before = _processor_time()
            variables = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)
            assert done.returncode == status, done.stderr
            return _processor_time() - before

    return measure


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
