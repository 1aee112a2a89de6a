"""How many calls of Python and C functions a recorded step makes that a bare one does not: counted, so without noise.

A small MLP, Adam, and a DataLoader (calls_training.py). Targets: 8 of Python's in a step that the trail passes over, 25
in another. Then the same of a step under `--on-nan capture`, before which a model as small is copied.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, scratch

TRAINING = Path(__file__).with_name("calls_training.py")
# The steps that are counted: those before, the ledger follows gradients. Of so many the trail has one.
FIRST, STEPS, EVERY = 1100, 48, 16
CAPTURE = "run", "--on-nan", "capture"
Calls = dict[tuple[str, str], int]  # of each function, by kind and place


def calls_of(command: Sequence[str], directory: Path) -> tuple[list[list[int]], Calls]:
    """Run the training; return the Python and C calls of each step, and those of each function in one step."""
    arguments = [*command, sys.executable, str(TRAINING), str(FIRST), str(STEPS)]
    done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, check=True)
    sums, functions = json.loads(done.stdout.splitlines()[0])
    return sums, {(kind, place): count for kind, place, count in functions}


def added_calls(directory: Path, *command: str) -> tuple[list[tuple[int, int]], Calls]:
    """Return how many calls of Python and C a command adds to each step, and of which functions to one."""
    bare, bare_functions = calls_of((), directory)
    recorded, functions = calls_of([REPROKIT, *command, "-o", "run", "--"], directory)
    pairs = zip(recorded, bare, strict=True)
    added = {place: count - bare_functions.get(place, 0) for place, count in functions.items()}
    return [(left[0] - right[0], left[1] - right[1]) for left, right in pairs], added


def main(_runs: int) -> None:
    """Print how many steps had how many calls more, and of which functions of Python."""
    recorded = [("record", "--trail-every", str(every)) for every in (1, EVERY)]
    for command in (*recorded, CAPTURE):
        with scratch() as name:
            steps, functions = added_calls(Path(name), *command)
        print(f"{' '.join(command)}: calls more than bare")
        for (python, compiled), count in Counter(steps).most_common():
            print(f"  {count} steps: {python} of Python functions and {compiled} of C functions")
        for (kind, place), count in sorted(functions.items()):
            if kind == "call" and count:
                print(f"    {count}  {place.rpartition('/')[2]}")
