"""The share of a training's time that is spent in reprokit's code, by samples of its stack.

Other work on the machine slows all of a training alike, which hides one percent from a comparison of times, and from
this hardly. What reprokit's code costs behind itself, by the caches that it fills, is not in it.
See https://github.com/benfred/py-spy.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

PY_SPY = str(Path(sys.executable).with_name("py-spy"))
RATE = 200  # samples a second
OURS = "reprokit/agent/"
# What our functions call in the training's stead, in which it goes on: backward, an optimizer's step, a loader's next.
TRAINING = ("backward (", "profile_hook_step", "__next__")


class SamplingError(Exception):
    """py-spy took no samples."""


def share(launcher: int, seconds: int, step: Callable[[], object]) -> tuple[int, int]:
    """Samples in reprokit's code, and all, of the training that this launcher began; step has it go on meanwhile."""
    if not Path(PY_SPY).exists():
        raise SamplingError("py-spy is not installed; pip install '.[benchmark]'")
    (training,) = (one for one in psutil.Process(launcher).children() if "benchmarks" in " ".join(one.cmdline()))
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / "stacks"
        options = ["--rate", str(RATE), "--duration", str(seconds), "--format", "raw", "--output", str(found)]
        command = [PY_SPY, "record", "--pid", str(training.pid), *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sampling:
            while sampling.poll() is None:
                step()
        if sampling.returncode or not found.exists():
            raise SamplingError("py-spy may not look at the training; run as root, or with kernel.yama.ptrace_scope=0")
        stacks = [line.rpartition(" ") for line in found.read_text().splitlines()]
    counted = [(int(count), is_ours(stack.split(";"))) for stack, _, count in stacks]
    return sum(count for count, ours in counted if ours), sum(count for count, _ in counted)


def is_ours(stack: Sequence[str]) -> bool:
    """Whether the innermost function, or what called it outside of the training, is reprokit's."""
    ours = [place for place, frame in enumerate(stack) if OURS in frame]
    if not ours:
        return False
    called = stack[ours[-1] + 1 : ours[-1] + 2]
    return not called or not any(name in called[0] for name in TRAINING)
