"""Trains a small CNN or MLP and prints what a step took: microseconds on the clock, and of all processors.

A kind that ends in -gpu is trained there.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.trail_training import steps

WARM = 40  # steps that do not count


def main(kind: str, count: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    name, _, is_on_gpu = kind.partition("-")
    training = steps(name, "cuda" if is_on_gpu else "cpu")
    for _ in range(WARM):
        next(training)
    begin = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(training)
    if is_on_gpu:
        torch.cuda.synchronize()
    print(
        *[
            1e6 * (now - then) / count
            for now, then in zip((time.perf_counter(), time.process_time()), begin, strict=True)
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
