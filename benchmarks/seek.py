"""Asking 10 steps near the end of 2,000 steps of 33 ms from a keyframe, beside a replay: processor time of all.

First of a PyTorch loop, then of Keras' fit, whose weights are asked for.

Targets: at most 15 % of the replay, and at most 1 % more for the recording with a keyframe each 100 steps.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

TRAININGS = Path(__file__).parents[1] / "tests/trainings"
STEPS = 2000


def main(runs: int, steps: int = STEPS) -> None:
    # Sizes with which a step takes some 33 ms on one processor.
    _measure(runs, steps, ["keyframed_loop.py", str(steps)], "losses", "208")
    _measure(runs, steps, ["keyframed_keras.py", str(-(-steps // 6)), "long"], "weights", "2048")


def _measure(runs: int, steps: int, words: list[str], tensors: str, size: str) -> None:
    training = ["--", sys.executable, str(TRAININGS / words[0]), *words[1:]]
    asked = f"{steps - 20}-{steps - 11}"
    os.environ["SIZE"] = size
    with scratch() as name:
        place = Path(name)
        record = ["record", "-q", "--overwrite", "-o"]
        sides: dict[str, Callable[[], float]] = {
            "recorded": lambda: _seconds(place, *record, "plain", *training),
            "with keyframes": lambda: _seconds(place, *record, "run", "--keyframes", "100steps", *training),
            "replayed": lambda: _seconds(place, "replay", "run", "--overwrite", "-o", "replay"),
            "10 steps asked": lambda: _seconds(place, "ask", "run", tensors, "--steps", asked),
        }
        results = in_turn(sides, max(1, runs // 8), warm_up=0)
    print(f"  {words[0]}, {steps:,} steps; the answer comes from the keyframe of step {(steps - 20) // 100 * 100:,}")
    show(results, "s", "replayed")
    show({side: results[side] for side in ("recorded", "with keyframes")}, "s", "recorded")


def _seconds(place: Path, *words: str) -> float:
    """Return the processor seconds of a command and all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([REPROKIT, *words], cwd=place, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
