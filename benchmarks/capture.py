"""What holding the state of each step costs a training, beside the frameworks' own checks.

Targets: 1 % of a step of 20 ms, 2 % of a small CNN's, 4 % of a small MLP's. Each side is a process of its own, which
trains all the time of the benchmark; they take turns, a block of steps each.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

ROOT = Path(__file__).parent.parent
TITLES = {
    "large": "PyTorch, a CNN with BatchNorm and dropout, one thread; target: at most 1 %",
    "cnn": "PyTorch, a small CNN, one thread; target: at most 2 %",
    "mlp": "PyTorch, a small MLP, one thread; target: at most 4 %",
    "keras": "Keras, fit of a small CNN, one thread",
    "function": "TensorFlow, a tf.function of a small MLP, one thread",
}
CHECKS = dict.fromkeys(("large", "cnn", "mlp"), "set_detect_anomaly")
CHECKS.update(dict.fromkeys(("keras", "function"), "enable_check_numerics"))
BLOCKS = {"large": 1, "cnn": 2, "mlp": 6, "keras": 2, "function": 6}  # for each run asked for
PROCESSES = 4  # of each side, one after the other: where memory happens to lie makes a difference too

Times = tuple[float, float]  # microseconds a step: on the clock, of the processors


class Training:
    """A process that trains a block of steps whenever it is told to."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def block(self) -> Times:
        """What a step of one block took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("block "):
                _, wall, processors = line.split()
                return float(wall), float(processors)
        raise RuntimeError(f"{self._process.args!r} ended early, with status {self._process.wait()}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def commands(kind: str) -> dict[str, list[str]]:
    """The command of each side."""
    training = [sys.executable, "-m", "benchmarks.capture_training", kind]
    return {
        "bare": training,
        "--on-nan capture": [REPROKIT, "run", "--on-nan", "capture", "--", *training],
        CHECKS[kind]: [*training, "checked"],
    }


@contextmanager
def started(kind: str, directory: Path) -> Iterator[dict[str, Training]]:
    """All sides of a training, under way."""
    with ExitStack() as stack:
        sides = {}
        for name, command in commands(kind).items():
            sides[name] = Training(command, directory)
            stack.callback(sides[name].close)
        yield sides


def measured(kind: str, runs: int) -> dict[str, list[Times]]:
    """All sides in turn."""
    results: dict[str, list[Times]] = {}
    for _ in range(PROCESSES):
        with scratch() as directory, started(kind, Path(directory)) as sides:
            blocks = {name: side.block for name, side in sides.items()}
            for name, times in in_turn(blocks, max(1, runs * BLOCKS[kind] // PROCESSES), warm_up=2).items():
                results.setdefault(name, []).extend(times)
    return results


def main(runs: int, kinds: Sequence[str] = tuple(TITLES)) -> None:
    """Each training."""
    for kind in kinds:
        print(TITLES[kind])
        results = measured(kind, runs)
        for part, title in enumerate(("on the clock", "of the processors")):
            print(f" {title}")
            show({name: [times[part] for times in found] for name, found in results.items()}, "us", "bare")
        pairs = zip(results["--on-nan capture"], results["bare"], strict=True)
        low, middle, high = statistics.quantiles([100 * times[1] / bare[1] - 100 for times, bare in pairs], n=4)
        print(f"  capturing adds {middle:.2f} % ({low:.2f} to {high:.2f}, the middle half)")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
