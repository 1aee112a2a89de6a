"""How much later a command begins under reprokit (target: at most 100 ms), and how long the end takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, Sides, in_turn, scratch, show


def begin_and_end(command: Sequence[str], directory: Path) -> tuple[float, float]:
    """Milliseconds from the call to the program's first line, and from there to the end of the call."""
    called = time.monotonic()
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    ended = time.monotonic()
    began = float(done.stdout)
    return 1000 * (began - called), 1000 * (ended - began)


def ends_of_a_command(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        program = str(directory / "startup")
        subprocess.run(["gcc", "-O2", "-o", program, Path(__file__).with_suffix(".c")], check=True)
        record = [REPROKIT, "record", "--", program]  # as users call it most often
        replay = [REPROKIT, "replay", "last"]
        times: dict[str, list[tuple[float, float]]] = {"bare": [], "record": [], "replay": []}
        for _ in range(runs + 1):
            for side, command in {"bare": [program], "record": record, "replay": replay}.items():
                times[side].append(begin_and_end(command, directory))
    for part, title in enumerate(("from the call to the command's first line", "from there to the end of the call")):
        print(title)
        show({side: [pair[part] for pair in pairs[1:]] for side, pairs in times.items()}, "ms", "bare")


def main(runs: int) -> None:
    ends_of_a_command(runs)
    print("python -c pass, as a whole")
    with scratch() as name:
        results = in_turn(Sides([sys.executable, "-c", "pass"], Path(name)).all(), runs)
    show({side: [1000 * value for value in values] for side, values in results.items()}, "ms", "bare")
    for side in ("recorded", "replayed"):
        added = [1000 * (a - b) for a, b in zip(results[side], results["bare"], strict=True)]
        print(f"  {side}: {statistics.median(added):+.1f} ms ({min(added):+.1f} to {max(added):+.1f})")
