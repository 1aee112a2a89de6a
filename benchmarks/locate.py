"""What logging operators costs a step, beside torch's own DebugMode with hashes: processor time.

Targets: 1.3 x the bare step of a CNN, 2.0 x that of an MLP. On a GPU, where there is one: time on the clock.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import show

TRAINING = Path(__file__).with_name("locate_training.py")


def main(runs: int) -> None:
    """Both trainings."""
    on_gpu = ("cnn-gpu", "mlp-gpu") if shutil.which("nvidia-smi") else ()
    for kind in ("cnn", "mlp", *on_gpu):
        done = subprocess.run(
            [sys.executable, str(TRAINING), kind, str(runs)], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{kind}, {found.pop('operators')} operators a step")
        show(found, "us", "bare")
