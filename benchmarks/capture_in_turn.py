"""What a capture costs the steps of one training, with and without it in turn: the same model in the same memory.

    reprokit run --on-nan capture -- python -m benchmarks.capture_in_turn large|cnn|mlp [PAIRS]

Processes differ by more than a capture costs, as their memory lies otherwise, and so do minutes. Here a few steps are
made as PyTorch has them, and a few as they are when captured, and the other way round, again and again.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import statistics
import sys
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.capture_training import FEW, SAMPLES, keep_memory, large
from benchmarks.trail_training import cnn, mlp

MAKERS: dict[str, Any] = {"large": large, "cnn": cnn, "mlp": mlp}
STEPS = {"large": 3, "cnn": 5}  # in a row
MANY_STEPS = 9
WARM = 1  # of them, which does not count
PAIRS = 500
WRAPPED = [(torch.autograd, "backward"), (torch.optim.Adam, "step"), (_BaseDataLoaderIter, "__next__")]


class Capturing:
    """The capture of this process, which can be taken away and put back between steps."""

    def __init__(self) -> None:
        found = [one for one in gc.get_objects() if type(one).__name__ == "TorchCapture"]
        if not found:
            sys.exit("nothing is captured here: start it by reprokit run --on-nan capture -- python -m ...")
        (self._capture,) = found
        self._ours = [vars(owner)[name] for owner, name in WRAPPED]

    def use(self, captures: bool) -> None:
        """Have the steps from now on captured, or not."""
        held = self._capture._threads.held
        for (owner, name), wrapper in zip(WRAPPED, self._ours, strict=True):
            setattr(owner, name, wrapper if captures else wrapper.__wrapped__)
        if captures:
            held.end(None)
            self._capture._arm(held)
        else:
            self._capture._disarm(held)


def main(kind: str, pairs: int) -> None:
    """All pairs; says what a captured step takes longer than one beside it."""
    keep_memory()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = MAKERS[kind]()
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(x, torch.randint(0, 10, (len(x),)))
    batches = itertools.chain.from_iterable(
        itertools.repeat(DataLoader(data, FEW if kind == "large" else SAMPLES, shuffle=True))
    )
    capturing = Capturing()

    def step() -> float:
        began = time.perf_counter()
        a, b = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(a), b).backward()
        optimizer.step()
        return 1e6 * (time.perf_counter() - began)

    def steps(captures: bool) -> float:
        capturing.use(captures)
        return statistics.median([step() for _ in range(STEPS.get(kind, MANY_STEPS))][WARM:])

    bare, added = [], []
    for pair in range(pairs):
        took = {captures: steps(captures) for captures in ((True, False) if pair % 2 else (False, True))}
        bare.append(took[False])
        added.append(took[True] - took[False])
    middle, of = statistics.median(added), statistics.median(bare) / 100
    drawn = sorted(statistics.median(random.choices(added, k=pairs)) for _ in range(400))  # a bootstrap
    print(
        f"{kind}: bare {100 * of:.0f} us, captured + {middle:.1f} us, {middle / of:.2f} % "
        f"(95 %: {drawn[9] / of:.2f} to {drawn[-10] / of:.2f}; {pairs} pairs)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_in_turn")
    parser.add_argument("kind", choices=list(MAKERS))
    parser.add_argument("pairs", type=int, nargs="?", default=PAIRS)
    main(**vars(parser.parse_args()))
