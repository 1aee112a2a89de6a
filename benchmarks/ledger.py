"""What the ledger of samples costs a step of the MLP of trail.py (target: 1 % of 1.4 ms), and its bytes a sample."""

from __future__ import annotations

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

TRAINING = Path(__file__).with_name("ledger_training.py")


def _step(directory: Path, side: str) -> float:
    """Microseconds of processor time a step, of a whole training."""
    command = [REPROKIT, "record", "-o", side, "--overwrite", "--", sys.executable, str(TRAINING), side]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(runs: int) -> None:
    """Both sides in turn."""
    from reprokit.run_files.ledgers import SampleStep, ledgers
    from reprokit.run_files.rundir import RunDirectory

    with scratch() as name:
        directory = Path(name)
        results = in_turn({side: partial(_step, directory, side) for side in ("without", "with")}, runs)
        run = RunDirectory(directory / "with")
        steps = [event for ledger in ledgers(run) for event in ledger.read() if isinstance(event, SampleStep)]
        size = 0 if run.run.samples is None else run.run.samples.size
    show(results, "us", "without")
    added = statistics.median(a - b for a, b in zip(results["with"], results["without"], strict=True))
    print(f"  the ledger adds {added:.1f} us; {size / sum(len(step.samples) for step in steps):.2f} bytes a sample")
