"""Trains a small CNN or MLP with the saving of tensors off and on in turn, in one recorded process. See tensors.py.

A line for each pair of blocks of steps: microseconds of all processors a step without saving and with it. A kind that
ends in -gpu is trained there, and measured on the clock.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.trail_training import steps

BLOCK = {"mlp": 80, "cnn": 20}  # steps, a multiple of the rules' steps
WARM = 2  # pairs that do not count


class Switch:
    """Turns the listener that saves tensors off and on."""

    def __init__(self) -> None:
        self.saver = next(item for item in gc.get_objects() if type(item).__name__ == "PytorchTensors")

    def turn(self, on: bool) -> None:
        events = self.saver._steps._events
        events.remove(self.saver)
        if on:
            events.add(self.saver)

    def settle(self) -> None:
        """Wait for what was handed over: it is part of the cost."""
        self.saver._flush()
        self.saver._steps.writer._settle()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()


def block(training: Iterator[None], count: int, switch: Switch, on: bool) -> float:
    """Microseconds of all processors that a step takes, with the writing of what it saves."""
    switch.turn(on)
    next(training)  # hooks change here
    now = time.perf_counter if torch.cuda.is_initialized() else time.process_time
    begin = now()
    for _ in range(count):
        next(training)
    switch.settle()
    return 1e6 * (now() - begin) / count


def main(kind: str, pairs: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    name, _, is_on_gpu = kind.partition("-")
    training = steps(name, "cuda" if is_on_gpu else "cpu")
    for _ in range(10):
        next(training)
    switch = Switch()
    for pair in range(-WARM, pairs):
        sides = {on: block(training, BLOCK[name], switch, on) for on in ((False, True) if pair % 2 else (True, False))}
        if pair >= 0:
            print(sides[False], sides[True], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
