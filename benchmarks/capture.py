"""What holding the state of each step costs a training, beside the frameworks' own checks.

Targets: 1 % of a step of 20 ms and on a GPU, 2 % of a small CNN's, 6 % of a small MLP's (under XLA 10 %). Each side is
a process of its own, which trains all the time of the benchmark; they take turns, a block of steps each. Then one more
process makes steps with and without the capture in turn, which shows what processes differ by more than
(capture_in_turn.py).
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.capture_in_turn import KINDS
from benchmarks.measure import REPROKIT, in_turn, scratch, show

ROOT = Path(__file__).parent.parent
TITLES = {
    "large": "PyTorch, a CNN with BatchNorm and dropout, one thread; target: at most 1 %",
    "cnn": "PyTorch, a small CNN, one thread; target: at most 2 %",
    "mlp": "PyTorch, a small MLP, one thread; target: at most 6 %",
    "keras-cnn-graph": "Keras, fit of a small CNN in a graph, one thread; target: at most 2 %",
    "keras-cnn-xla": "Keras, fit of a small CNN compiled by XLA, one thread; target: at most 2 %",
    "keras-mlp-graph": "Keras, fit of a small MLP in a graph, one thread; target: at most 6 %",
    "keras-mlp-xla": "Keras, fit of a small MLP compiled by XLA, one thread; target: at most 10 %",
    "function": "TensorFlow, a tf.function of a small MLP, one thread; target: at most 6 %",
    "gpu": "PyTorch, a CNN on a GPU, eight steps together; target: at most 1 %",
}
TORCH = ("large", "cnn", "mlp", "gpu")
CHECKS = {kind: "set_detect_anomaly" if kind in TORCH else "enable_check_numerics" for kind in TITLES}
REFUSED = tuple(kind for kind in TITLES if kind.endswith("xla"))  # XLA compiles no checked graph
BLOCKS = {"large": 2, "cnn": 2, "gpu": 2, "keras-cnn-graph": 2, "keras-cnn-xla": 2}  # for each run asked for
MANY_BLOCKS = 6  # of what is quick
# Of each side, one after the other: where memory happens to lie makes a difference too. TensorFlow starts slowly.
PROCESSES, SLOW_PROCESSES = 4, 3

Times = tuple[float, float]  # microseconds a step: on the clock, of the processors


class Training:
    """A process that trains a block of steps whenever it is told to."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=directory, env=surroundings(), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
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


def surroundings() -> dict[str, str]:
    """The variables of all sides."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


def commands(kind: str) -> dict[str, list[str]]:
    """The command of each side."""
    training = [sys.executable, "-m", "benchmarks.capture_training", kind]
    sides = {"bare": training, "--on-nan capture": [REPROKIT, "run", "--on-nan", "capture", "--", *training]}
    return sides if kind in REFUSED else {**sides, CHECKS[kind]: [*training, "checked"]}


@contextmanager
def started(kind: str, directory: Path, turn: int) -> Iterator[dict[str, Training]]:
    """All sides of a training, under way; each turn another is the first to start."""
    with ExitStack() as stack:
        sides, started_by = {}, commands(kind)
        names = list(started_by)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            sides[name] = Training(started_by[name], directory)
            stack.callback(sides[name].close)
        yield sides


def measured(kind: str, runs: int) -> dict[str, list[Times]]:
    """All sides in turn."""
    results: dict[str, list[Times]] = {}
    processes = PROCESSES if kind in TORCH else SLOW_PROCESSES
    blocks_each = max(1, runs * BLOCKS.get(kind, MANY_BLOCKS) // processes)
    for turn in range(processes):
        with scratch() as directory, started(kind, Path(directory), turn) as sides:
            blocks = {name: side.block for name, side in sides.items()}
            for name, times in in_turn(blocks, blocks_each, warm_up=2).items():
                results.setdefault(name, []).extend(times)
    return results


def show_in_turn(kind: str) -> None:
    """What one training says that its captured steps take longer than those beside them."""
    command = [REPROKIT, "run", "--on-nan", "capture", "--", sys.executable, "-m", "benchmarks.capture_in_turn", kind]
    with scratch() as directory:
        done = subprocess.run(command, cwd=directory, env=surroundings(), capture_output=True, text=True, check=True)
    print("  " + done.stdout.splitlines()[-1])


def main(runs: int, kinds: Sequence[str] = tuple(TITLES)) -> None:
    """Each training."""
    for kind in kinds:
        print(TITLES[kind], flush=True)
        if kind == "gpu" and shutil.which("nvidia-smi") is None:
            print("  not measured: there is no GPU")
            continue
        results = measured(kind, runs)
        for part, title in enumerate(("on the clock", "of the processors")):
            print(f" {title}")
            show({name: [times[part] for times in results[name]] for name in commands(kind)}, "us", "bare")
            pairs = zip(results["--on-nan capture"], results["bare"], strict=True)
            ratios = [100 * times[part] / bare[part] - 100 for times, bare in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"  capturing adds {middle:.2f} % ({low:.2f} to {high:.2f}, the middle half)")
        if kind in KINDS:
            show_in_turn(kind)
        if kind in REFUSED:
            print(f"  {CHECKS[kind]}: XLA compiles no graph that has it")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
