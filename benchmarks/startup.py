"""What reprokit adds to the start and the end of a command; target: at most 100 ms."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks.measure import Sides, in_turn, scratch, show


def main(runs: int) -> None:
    for title, command in {
        "true": ["true"],
        "python -c pass": [sys.executable, "-c", "pass"],
        "python, importing numpy": [sys.executable, "-c", "import numpy"],
    }.items():
        with scratch() as name:
            results = in_turn(Sides(command, Path(name)).all(), runs)
        print(title)
        show({side: [1000 * value for value in values] for side, values in results.items()}, "ms", "bare")
        for side in ("recorded", "replayed"):
            added = [1000 * (a - b) for a, b in zip(results[side], results["bare"], strict=True)]
            print(f"  {side}: {statistics.median(added):+.1f} ms ({min(added):+.1f} to {max(added):+.1f})")
